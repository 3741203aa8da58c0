"""What a service asks of others, the same for every version: a Kubernetes API, a hub mirror, models on disk, a policy.

All of it are files of `surroundings/`, which an HTTP server on loopback gives as they are: ConfigMaps and training
runtimes by their paths in the Kubernetes API, and `{org}/{name}/resolve/{revision}/config.json`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(__file__).parent / "surroundings"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Say nothing."""


@contextmanager
def surroundings() -> Iterator[dict[str, str]]:
    """Yield the settings by which a service finds its surroundings."""
    handler = functools.partial(_Quiet, directory=str(FOLDER))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield {
                "PLIMSOLL_KUBERNETES_API_URL": url,
                "PLIMSOLL_HUB_URL": url,
                "PLIMSOLL_MODEL_ROOTS": str(FOLDER / "models"),
                "PLIMSOLL_ADMISSION_POLICY_FILE": str(FOLDER / "policy.toml"),
            }
        finally:
            server.shutdown()
            thread.join()

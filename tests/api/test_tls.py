"""HTTPS, and clients that must show a certificate, with certificates made for the test."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from plimsoll.api.main import server_config
from plimsoll.service.ground.settings import Settings

START_SECONDS = 30
OPENSSL = shutil.which("openssl")

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="certificates are made by openssl")


def make_certificate(folder: Path, name: str, authority: str | None = None) -> None:
    """Make `name`.crt and `name`.key, signed by an authority made before or by itself."""
    issuer = [] if authority is None else ["-CA", f"{authority}.crt", "-CAkey", f"{authority}.key"]
    subprocess.run(
        [
            str(OPENSSL), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2",
            "-keyout", f"{name}.key", "-out", f"{name}.crt", *issuer,
        ],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificate(folder, "server")
    make_certificate(folder, "authority")
    make_certificate(folder, "api-server", authority="authority")
    make_certificate(folder, "stranger")
    return folder


@pytest.fixture(scope="module")
def url(module_database_url: str, certificates: Path) -> Iterator[str]:
    settings = Settings(
        database_url=module_database_url,
        host="0.0.0.0",  # noqa: S104 - so that keys are needed; the listener below is on loopback
        tls_certificate_file=certificates / "server.crt",
        tls_key_file=certificates / "server.key",
        tls_client_ca_file=certificates / "authority.crt",
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(server_config(settings))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(START_SECONDS)


def client(certificates: Path, name: str | None) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(certificates / "server.crt"))
    if name is not None:
        context.load_cert_chain(certificates / f"{name}.crt", certificates / f"{name}.key")
    return httpx.Client(verify=context, trust_env=False, timeout=60.0)


def test_a_client_of_the_authority_is_answered_and_still_needs_a_key_elsewhere(url: str, certificates: Path):
    with client(certificates, "api-server") as api_server:
        # Read and found to be no review, and not refused for want of a key.
        assert api_server.post(f"{url}/admission/validate", json={}).status_code == 400
        assert api_server.get(f"{url}/plans").status_code == 401


@pytest.mark.parametrize("name", [None, "stranger"])
def test_no_other_client_gets_a_word(url: str, certificates: Path, name: str | None):
    with client(certificates, name) as other, pytest.raises(httpx.TransportError):
        other.get(f"{url}/healthz")

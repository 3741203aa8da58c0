"""Running the API as a process."""

from __future__ import annotations

import uvicorn

from api.app import create_app
from service.settings import Settings

# Streams of events end when the service does; nobody waits longer than this for them.
SHUTDOWN_SECONDS = 5


def run_api(settings: Settings) -> None:
    """Serve until told to stop.

    One process on one core; run more of them for more. There is no access log:
    `/metrics` counts requests, and a proxy logs them better.
    """
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level=settings.log_level,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )

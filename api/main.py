"""Running the API as a process."""

from __future__ import annotations

import asyncio
import functools
import gc
import math
import os
import resource
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

import uvicorn
from starlette.applications import Starlette

from plimsoll.api.app import create_app
from plimsoll.api.connection_limits import FILES_FOR_OTHERS, ConnectionLimits, raise_file_limit
from plimsoll.api.connections import guarded_protocol
from plimsoll.api.services import Services, check_database_is_named
from plimsoll.service.ground.settings import Settings
from plimsoll.service.observability.logging import configure_logging
from plimsoll.service.running.listening import check_listening
from plimsoll.service.running.starting import told_in_a_line

ACCEPTED_A_TURN = 16
"""New connections in one turn of the event loop. A turn lasts 50 ms and more under load, and who asks only now, as a
prober does, would stand behind all connections that others opened."""


def run_api(settings: Settings) -> None:
    """Serve until told to stop.

    One process on one core; run more of them for more. There is no access log:
    `/metrics` counts requests, and a proxy logs them better.
    """
    configure_logging(settings.log_level)
    raise_file_limit()
    with told_in_a_line():
        check_database_is_named(settings)
        check_listening(settings)
    config = server_config(settings)
    LongLivedServer(config).run()


class LongLivedServer(uvicorn.Server):
    """Holds back no request for the sake of what stays as long as the process does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and leave what was loaded until now out of garbage collection.

        A full one looked through it for 100 ms, in the middle of whatever request brought it about.
        """
        await super().startup(sockets)
        await self._listen_several_times()
        gc.collect()
        gc.freeze()

    async def _listen_several_times(self) -> None:
        """Take more than one new connection in each turn, which is all that libuv takes from one listening handle.

        Source: https://github.com/libuv/libuv/pull/3696
        """
        loop = asyncio.get_running_loop()
        config = self.config
        protocol: Callable[[], asyncio.Protocol] = functools.partial(
            cast(Callable[..., asyncio.Protocol], config.http_protocol_class),
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for listening in [listening for server in self.servers for listening in server.sockets]:
            for _ in range(ACCEPTED_A_TURN - 1):
                again = socket.socket(fileno=os.dup(listening.fileno()))
                server = await loop.create_server(protocol, sock=again, ssl=config.ssl, backlog=config.backlog)
                self.servers.append(server)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing new, end the streams, and wait for the requests that are under way."""
        app = self.config.app
        services: Services | None = getattr(app.state, "services", None) if isinstance(app, Starlette) else None
        if services is not None:
            services.jobs.end_streams()
        await super().shutdown(sockets)


def server_config(settings: Settings) -> uvicorn.Config:
    """Return how the API is served."""
    return uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=guarded_protocol(settings.body_timeout_seconds, connection_limits(settings)),
        # No route speaks it.
        ws="none",
        # Structured, and set before this is asked for.
        log_config=None,
        access_log=False,
        log_level=settings.log_level,
        server_header=False,
        # `api.auth.forwarded` reads them.
        proxy_headers=False,
        # No request takes longer than this, and streams are ended before.
        timeout_graceful_shutdown=math.ceil(settings.longest_request_seconds),
        ssl_certfile=settings.tls_certificate_file,
        ssl_keyfile=_text(settings.tls_key_file),
        ssl_ca_certs=_text(settings.tls_client_ca_file),
        ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca_file is None else ssl.CERT_REQUIRED,
    )


def connection_limits(settings: Settings) -> ConnectionLimits:
    """Return how many connections a process holds: as many as it is set to, and as it may open files for."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ConnectionLimits(
        min(settings.max_connections, max(1, files - FILES_FOR_OTHERS)),
        most_of_one=settings.address_connections,
        proxies=settings.trusted_proxies,
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)

"""What the API listens with, tried before anything else is started: its address, its port and its certificates."""

from __future__ import annotations

import errno
import socket
import ssl
from pathlib import Path

from plimsoll.service.ground.settings import PREFIX, Settings
from plimsoll.service.running.starting import CannotStart


def check_listening(settings: Settings) -> None:
    """Raise CannotStart where the address cannot be listened on, or a certificate cannot be served."""
    check_address(settings.host, settings.port)
    certificate, key, authority = settings.tls_certificate_file, settings.tls_key_file, settings.tls_client_ca_file
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate is not None and key is not None:
        _check_readable("TLS_CERTIFICATE_FILE", certificate)
        _check_readable("TLS_KEY_FILE", key)
        try:
            # A key with a password would be asked for on the terminal.
            context.load_cert_chain(certificate, key, password=lambda: "")
        except ssl.SSLError as error:
            raise CannotStart(
                f"{certificate} ({PREFIX}TLS_CERTIFICATE_FILE) and {key} ({PREFIX}TLS_KEY_FILE) must be a PEM "
                f"certificate and its key, without a password: {error.reason or error}."
            ) from error
    if authority is not None:
        _check_readable("TLS_CLIENT_CA_FILE", authority)
        try:
            context.load_verify_locations(authority)
        except ssl.SSLError as error:
            raise CannotStart(
                f"{authority} ({PREFIX}TLS_CLIENT_CA_FILE) holds no PEM certificate: {error.reason or error}."
            ) from error


def check_address(host: str, port: int) -> None:
    """Raise CannotStart where a port of a host cannot be listened on."""
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotStart(f"{host} ({PREFIX}HOST) is no host name or address: {error.strerror}.") from error
    for family, kind, protocol, _, address in places:
        with socket.socket(family, kind, protocol) as tried:
            # As the server sets it: connections that have just ended are no hindrance.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                tried.bind(address)
            except OSError as error:
                raise CannotStart(_why_not(error, host, port)) from error


def _why_not(error: OSError, host: str, port: int) -> str:
    other = f"with --port or {PREFIX}PORT"
    match error.errno:
        case errno.EADDRINUSE:
            return f"Port {port} of {host} is in use. Stop what listens there, or choose another port {other}."
        case errno.EACCES:
            return f"This user may not listen on port {port}. Choose one from 1024 on {other}."
        case errno.EADDRNOTAVAIL:
            return f"{host} ({PREFIX}HOST) is no address of this machine. 0.0.0.0 stands for all that it has."
    return f"Port {port} of {host} cannot be listened on: {error.strerror}."


def _check_readable(name: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise CannotStart(f"{path} ({PREFIX}{name}) cannot be read: {error.strerror}.") from error

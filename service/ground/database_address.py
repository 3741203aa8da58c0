"""Where the database is, as each library wants it written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

_DIALECT = "postgresql+psycopg"

# A peer that the network hides says nothing, and Linux by itself waits two hours for it:
# https://www.postgresql.org/docs/18/libpq-connect.html#LIBPQ-KEEPALIVES. So it is given up after twenty seconds.
KEEPALIVE: Mapping[str, Any] = {
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,  # milliseconds
}
CONNECT_TIMEOUT_SECONDS = 5
# A process that the network hides may hold locks, and the submissions' turn among them. So the server, too, gives
# up a silent peer after twenty seconds, and a transaction that does nothing after thirty; by itself it never does.
SILENCE_LIMITS = (
    "SET idle_in_transaction_session_timeout = '30s'; SET tcp_user_timeout = '20s'; "
    "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
)


def sqlalchemy_url(url: str) -> URL:
    """Return a URL for SQLAlchemy from any usual spelling: `postgres://`, `postgresql://`, or its own.

    Raises ValueError for what is no URL, or one of another database or driver.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ValueError("not a URL; write postgresql://user:password@host:port/name") from error
    if parsed.drivername not in ("postgres", "postgresql", _DIALECT):
        raise ValueError(f"{parsed.drivername!r} is not PostgreSQL through psycopg; write postgresql://…")
    return parsed.set(drivername=_DIALECT)


def libpq_url(url: str) -> str:
    """Return the URL for psycopg and everything else that is built on libpq."""
    return sqlalchemy_url(url).set(drivername="postgresql").render_as_string(hide_password=False)

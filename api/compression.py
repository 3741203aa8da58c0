"""Which answers are compressed: large ones, for clients that accept gzip."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import Receive, Scope, Send

GZIP = "gzip"


class Compression(GZipMiddleware):
    """Starlette's, which takes the word `gzip` for a wish, `gzip;q=0` too, and knows neither `GZIP` nor `*`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "http":
            accepted = accepts_gzip(",".join(Headers(scope=scope).getlist("accept-encoding")))
            others = [header for header in scope["headers"] if header[0] != b"accept-encoding"]
            # In place: what surrounds this reads from the same scope which route it was.
            scope["headers"] = [*others, (b"accept-encoding", GZIP.encode() if accepted else b"identity")]
        await super().__call__(scope, receive, send)


def accepts_gzip(header: str) -> bool:
    """Return whether an `Accept-Encoding` allows gzip (RFC 9110, section 12.5.3)."""
    allowed = dict(_coding(item) for item in header.lower().split(","))
    return allowed.get(GZIP, allowed.get("*", False))


def _coding(item: str) -> tuple[str, bool]:
    """Return a coding and whether it is allowed: where its weight is above zero, and one at all."""
    coding, _, weight = item.partition(";")
    try:
        return coding.strip(), float(weight.strip().removeprefix("q=") or 1) > 0
    except ValueError:
        return coding.strip(), False

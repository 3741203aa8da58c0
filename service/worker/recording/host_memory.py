"""Which memory the code under trace allocates from: the device's, or its host's.

All tensors of a trace are fake ones of torch's `cpu`, the device's and the host's alike. A copy to the host
is thus a copy made inside `on_host()`, and what is made there is counted apart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_ON_HOST: ContextVar[bool] = ContextVar("on_host", default=False)


@contextlib.contextmanager
def on_host(is_there: bool = True) -> Iterator[None]:
    """Allocate from the host's memory until the end of the block, or with False from the device's."""
    token = _ON_HOST.set(is_there)
    try:
        yield
    finally:
        _ON_HOST.reset(token)


def is_on_host() -> bool:
    """Return whether what is made now lies on the host."""
    return _ON_HOST.get()

"""Which memory the code under trace allocates from: the device's, or its host's.

All tensors of a trace are fake ones of torch's `cpu`, the device's and the host's alike. A copy to the host
is thus a copy made inside `on_host()`, and what is made there is counted apart. Code that itself names the devices it
moves tensors between is run with `DEVICE` as its accelerator: a second CPU, which a fake tensor can lie on, so that
whatever lies on the first is the host's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch

HOST = torch.device("cpu")
DEVICE = torch.device("cpu", 1)

_ON_HOST: ContextVar[bool] = ContextVar("on_host", default=False)
_HOST_APART: ContextVar[bool] = ContextVar("host_apart", default=False)


@contextlib.contextmanager
def on_host(is_there: bool = True) -> Iterator[None]:
    """Allocate from the host's memory until the end of the block, or with False from the device's."""
    token = _ON_HOST.set(is_there)
    try:
        yield
    finally:
        _ON_HOST.reset(token)


@contextlib.contextmanager
def host_apart() -> Iterator[None]:
    """Make tensors on `DEVICE`, unless code says where, and call those on `HOST` the host's until the block ends."""
    token = _HOST_APART.set(True)
    try:
        with DEVICE:
            yield
    finally:
        _HOST_APART.reset(token)


def is_host(device: torch.device | None = None) -> bool:
    """Return whether what is made now, on that device, lies on the host."""
    return _ON_HOST.get() or (_HOST_APART.get() and device == HOST)

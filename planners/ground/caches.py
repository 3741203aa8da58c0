"""What planning keeps of models and layouts that were asked about, in caches that are bounded by their entries.

An entry holds on to the description of its model, so that the bytes of all of them are bounded only by forgetting them
together: who lets strangers describe models calls `forget` once those descriptions have come to too much.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import _lru_cache_wrapper
from typing import Any

PACKAGE = "plimsoll.planners."


def forget() -> None:
    """Empty every bounded cache of the planners; what they read of their own files stays."""
    for cache in bounded_caches():
        cache.cache_clear()


def bounded_caches() -> Iterator[_lru_cache_wrapper[Any]]:
    """Yield the caches of the planners' modules that are loaded and keep no more than so many entries."""
    for name, module in tuple(sys.modules.items()):
        if name.startswith(PACKAGE):
            for value in tuple(vars(module).values()):
                if isinstance(value, _lru_cache_wrapper) and value.cache_parameters()["maxsize"] is not None:
                    yield value

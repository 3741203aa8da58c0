from __future__ import annotations

import functools
import sys
from types import ModuleType

import pytest

from plimsoll.planners.ground.caches import bounded_caches, forget


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module of the planners with a bounded cache and one without end, each with an entry."""
    made = ModuleType("plimsoll.planners.made_for_a_test")
    made.bounded = functools.lru_cache(maxsize=4)(abs)
    made.endless = functools.cache(abs)
    made.bounded(-1), made.endless(-1)
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_what_was_asked_about_is_forgotten_and_what_was_read_of_files_is_not(module: ModuleType):
    assert module.bounded in tuple(bounded_caches())
    forget()
    assert module.bounded.cache_info().currsize == 0
    assert module.endless.cache_info().currsize == 1


def test_caches_of_models_and_layouts_are_among_them():
    from plimsoll.planners.memory import shards
    from plimsoll.planners.serving.weights import stages as weights
    from plimsoll.planners.training import sharding

    known = tuple(bounded_caches())
    assert all(cache in known for cache in (sharding._weights, shards._held, shards._way, weights._rank_bytes))

"""transformers' own generation: its layers as they are, with a cache of keys and values."""

from __future__ import annotations

from plimsoll.service.worker.engines.engine import FULL_ATTENTION, Engine

ENGINE = Engine(name="transformers", cached_kinds=frozenset({FULL_ATTENTION}))

"""What is asked of a serving engine; each folder beside this file holds one and answers as `ENGINE`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TypeAlias

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.serving.cache.kv_formats import CacheTerms
from plimsoll.planners.serving.cache.pools import Cache
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.log_lines import LogLines
from plimsoll.planners.serving.memory.budget import Shifts, StageBudget
from plimsoll.planners.serving.releases.tables import engine_folders
from plimsoll.planners.serving.settings.settings import Settings
from plimsoll.planners.serving.weights.stages import Stage

CacheRule: TypeAlias = Callable[[ModelSpec, CacheTerms, Degrees], Cache]
BudgetRule: TypeAlias = Callable[[ModelSpec, Settings, Stage, Degrees, int], StageBudget]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What an engine does by rules of its own; its figures by version are in its `engine.toml`.

    `cache` lays a rank's cache out, and `compressed_cache` that of models whose entries stand for several tokens, None
    where such are not sized. `budget` is what a stage leaves of a card of so many bytes, and `offset_bytes` the same
    rule solved for what lies outside torch; its start-up measures working memory, CUDA graphs and that apart where it
    `measures_apart`. With `plans_work_apart` the working memory is no part of the share that
    the engine takes, so that a larger share is known to leave room for it. `memory_note` says how to read the account.
    """

    cache: CacheRule
    compressed_cache: CacheRule | None = None
    budget: BudgetRule
    offset_bytes: Callable[[Shifts], int]
    plans_work_apart: bool
    memory_note: str
    startup_log: LogLines | None = None
    measures_apart: bool = False


@cache
def engine_named(name: str) -> Engine:
    """Return an engine of those known by name."""
    module = import_module(f"{__package__}.{engine_folders()[name].name}.engine")
    found: Engine = module.ENGINE
    return found

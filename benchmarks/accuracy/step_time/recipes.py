"""What sources say elsewhere of runs beside what their tables print: recompute, and what hides behind what.

A row of `train_step_recipes.csv` names the recipe of the release that a run was published with. One of Megatron-Bridge
stands there only if its degrees of parallelism, virtual stages, micro-batch, GPUs and sharding are all as printed.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "data" / "train_step_recipes.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A run's recipe; of layers that it offloads a stack of ours has no count, so that those stay open."""

    recompute_modules: tuple[str, ...]
    hides_expert_exchange: bool
    offloads_layers: bool


def recipe_of(case_id: str) -> Recipe | None:
    """Return the recipe of a row of train_step.csv; None where none fits, or another stack published it."""
    return _recipes().get(case_id)


@functools.cache
def _recipes() -> Mapping[str, Recipe]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return {
            row["case_id"]: Recipe(
                recompute_modules=tuple(row["recompute_modules"].split()),
                hides_expert_exchange=row["hides_expert_exchange"] == "1",
                offloads_layers=bool(row["offloaded_layers"]),
            )
            for row in csv.DictReader(file)
        }

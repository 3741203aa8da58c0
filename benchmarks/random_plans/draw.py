"""Plans drawn from a seed until there are enough that the planner answers for and the worker traces."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from pydantic import ValidationError

from benchmarks.random_plans.layouts import drawn_request
from benchmarks.random_plans.planning import chosen_layout, planned_memory, proof_request, read_request
from benchmarks.random_plans.themes import Theme, drawn_theme
from plimsoll.planners.ground.errors import ImpossibleLayout, PlimsollError
from plimsoll.planners.plans import Layout, Memory, layout_from
from plimsoll.service.worker.proofs.refusals.every import proved_job

# Of pipelines one more stage than the plan's fullest is traced so often.
OTHER_STAGE_FRACTION = 1 / 3
MOST_ATTEMPTS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPlan:
    """A plan to trace: the request, the layout that the planner answers with, and the stages to trace."""

    number: int
    request: Mapping[str, Any]
    layout: Layout
    stages: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as it is stored."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> DrawnPlan:
        """Return a stored one."""
        return cls(
            number=stored["number"],
            request=stored["request"],
            layout=layout_from(stored["layout"]),
            stages=tuple(stored["stages"]),
        )


def drawn_plans(seed: int, count: int, dropped: Counter[str], first: int = 0) -> Iterator[DrawnPlan]:
    """Yield plans that are planned and traced, each drawn by its own number; count in `dropped` what is not, by reason.

    A plan depends on the seed and its number alone, so that more can be drawn later.
    """
    for number in range(first, first + count):
        random = Random(f"{seed}:{number}")
        plan = None
        while plan is None:
            theme = drawn_theme(random)
            # Around one theme until a plan is left: what is refused often is not drawn less for it.
            attempts = (_attempt(random, theme, number, dropped) for _ in range(MOST_ATTEMPTS))
            plan = next((attempt for attempt in attempts if attempt is not None), None)
        yield plan


def _attempt(random: Random, theme: Theme, number: int, dropped: Counter[str]) -> DrawnPlan | None:
    """Return a plan, or None for a request that is refused by planner or worker."""
    body = drawn_request(random, theme)
    try:
        asked = read_request(body)
        layout = chosen_layout(asked)
        memory = planned_memory(asked, layout)
    except ValidationError as error:
        dropped[f"422 {'.'.join(map(str, error.errors()[0]['loc']))}"] += 1
        return None
    except ImpossibleLayout as error:
        dropped[f"422 {error.rule}"] += 1
        return None
    except PlimsollError as error:
        dropped[f"422 {error.code} {error.pointer}"] += 1
        return None
    try:
        proved_job(proof_request(asked, layout, memory))
    except PlimsollError as error:
        dropped[f"501 {body['framework']} {error.pointer}"] += 1
        return None
    return DrawnPlan(number=number, request=body, layout=layout, stages=_stages(random, memory))


def _stages(random: Random, memory: Memory) -> tuple[int, ...]:
    """Return the stage that decides in the plan, and of some pipelines another one."""
    fullest = max(memory.stages, key=lambda stage: stage.peak_bytes).stage
    others = [stage.stage for stage in memory.stages if stage.stage != fullest]
    if others and random.random() < OTHER_STAGE_FRACTION:
        return (fullest, random.choice(others))
    return (fullest,)

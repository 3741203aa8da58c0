"""The body of a planned answer: the planner's own, and what the service adds around it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NoReturn, TypeVar

from pydantic_core import to_json

from plimsoll.planners.plans import (
    Advice,
    Alternative,
    Comparison,
    FleetEntry,
    Omitted,
    SearchCounts,
    SearchedStacks,
    TrainingAnswer,
    TrainingPlan,
)
from plimsoll.planners.serving.answer import (
    ServingAdvice,
    ServingAlternative,
    ServingAnswer,
    ServingFleetEntry,
    ServingPlan,
)
from plimsoll.service.launch.files import LaunchFiles
from plimsoll.service.persistence.records import PlanKind, PlanLine


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSearch(SearchCounts):
    """How large the search was, and how long it took on the clock."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanIdentity:
    """What a plan's id stands for, beside the request itself."""

    plan_id: str
    planner_version: str
    catalogue_revision: str
    calibration_revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """What a plan answers: the request with every default, the model's config and the GPU's figures filled in."""

    plan_id: str
    kind: PlanKind
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPage:
    """Some plans, newest first; `next_cursor` asks for the next ones and is null at the end."""

    items: tuple[PlanLine, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlanBody(PlanIdentity):
    """The answer to `POST /plan/train`; `missing_artifacts` are launch files that could not say what was planned.

    `omitted` are parts of the answer that could not be worked out, and are empty or null in it.
    """

    kind: Literal["train"] = "train"
    fits: bool
    verdict: str
    summary: str
    plan: TrainingPlan
    alternatives: tuple[Alternative, ...]
    search: TimedSearch
    advice: tuple[Advice, ...]
    comparisons: tuple[Comparison, ...]
    fleet: tuple[FleetEntry, ...]
    artifacts: Mapping[str, Any]
    missing_artifacts: Mapping[str, tuple[str, ...]]
    stacks: SearchedStacks
    assumptions: tuple[str, ...]
    omitted: tuple[Omitted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferPlanBody(PlanIdentity):
    """The answer to `POST /plan/infer`.

    `fits` and `verdict` are of memory alone; `meets` says whether the load and the service level that were asked
    are kept, too, and `meets_…` each of them, null where nothing was asked. `missing_artifacts` are launch files
    that could not say what was planned; `omitted` are parts that could not be worked out, empty or null here.
    """

    kind: Literal["infer"] = "infer"
    fits: bool
    verdict: str
    meets: bool
    meets_concurrency: bool | None
    meets_slo: bool | None
    summary: str
    plan: ServingPlan
    alternatives: tuple[ServingAlternative, ...]
    search: TimedSearch
    advice: tuple[ServingAdvice, ...]
    fleet: tuple[ServingFleetEntry, ...]
    artifacts: Mapping[str, Any]
    missing_artifacts: Mapping[str, tuple[str, ...]]
    assumptions: tuple[str, ...]
    omitted: tuple[Omitted, ...]


Body = TypeVar("Body", TrainPlanBody, InferPlanBody)


def body_json(body: TrainPlanBody | InferPlanBody) -> str:
    """Return the body as it is sent; raises OverflowError where a number of it is none."""
    # Constants, so that they are found: as null they would pass for an answer.
    text = to_json(body, inf_nan_mode="constants").decode()
    if "NaN" in text or "Infinity" in text:
        json.loads(text, parse_constant=_refuse_constant)
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise OverflowError(f"A number of the plan is {name}.")


def answer_body(
    kind: type[Body],
    identity: PlanIdentity,
    answer: TrainingAnswer | ServingAnswer,
    *,
    seconds: float,
    artifacts: LaunchFiles,
    assumptions: tuple[str, ...],
) -> Body:
    """Return the body of a plan: all that the planner answered by the names of its fields, and what is added to it.

    The assumptions are those of the model and the GPU, named first.
    """
    around: dict[str, Any] = {
        "search": TimedSearch(**_by_name(answer.search), seconds=seconds),
        "artifacts": artifacts.files,
        "missing_artifacts": artifacts.missing,
        "assumptions": tuple(dict.fromkeys((*assumptions, *answer.assumptions))),
        "omitted": (*answer.omitted, *artifacts.omitted),
    }
    return kind(**{**_by_name(identity), **_by_name(answer), **around})


def _by_name(value: PlanIdentity | SearchCounts | TrainingAnswer | ServingAnswer) -> dict[str, Any]:
    return {entry.name: getattr(value, entry.name) for entry in fields(value)}

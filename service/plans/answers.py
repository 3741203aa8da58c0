"""The body of a planned answer: the planner's own, and what the service adds around it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NoReturn

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
class TimedSearch:
    """How large the search was, and how long it took on the clock."""

    layouts_considered: int
    layouts_excluded: int
    layouts_fitting: int
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
class TrainPlanBody:
    """The answer to `POST /plan/train`; `missing_artifacts` are launch files that could not say what was planned.

    `omitted` are parts of the answer that could not be worked out, and are empty or null in it.
    """

    plan_id: str
    planner_version: str
    catalogue_revision: str
    calibration_revision: str
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
class InferPlanBody:
    """The answer to `POST /plan/infer`.

    `fits` and `verdict` are of memory alone; `meets` says whether the load and the service level that were asked
    are kept, too, and `meets_…` each of them, null where nothing was asked. `missing_artifacts` are launch files
    that could not say what was planned; `omitted` are parts that could not be worked out, empty or null here.
    """

    plan_id: str
    planner_version: str
    catalogue_revision: str
    calibration_revision: str
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


def body_json(body: TrainPlanBody | InferPlanBody) -> str:
    """Return the body as it is sent; raises OverflowError where a number of it is none."""
    # Constants, so that they are found: as null they would pass for an answer.
    text = to_json(body, inf_nan_mode="constants").decode()
    if "NaN" in text or "Infinity" in text:
        json.loads(text, parse_constant=_refuse_constant)
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise OverflowError(f"A number of the plan is {name}.")


def train_body(
    identity: PlanIdentity,
    answer: TrainingAnswer,
    *,
    seconds: float,
    artifacts: LaunchFiles,
    assumptions: tuple[str, ...],
) -> TrainPlanBody:
    """Return the body of a training plan; the assumptions are those of the model and the GPU, named first."""
    return TrainPlanBody(
        **_shared(identity, answer, seconds=seconds, artifacts=artifacts.files, assumptions=assumptions),
        plan=answer.plan,
        alternatives=answer.alternatives,
        advice=answer.advice,
        comparisons=answer.comparisons,
        fleet=answer.fleet,
        missing_artifacts=artifacts.missing,
        stacks=answer.stacks,
        omitted=(*answer.omitted, *artifacts.omitted),
    )


def infer_body(
    identity: PlanIdentity,
    answer: ServingAnswer,
    *,
    seconds: float,
    artifacts: LaunchFiles,
    assumptions: tuple[str, ...],
) -> InferPlanBody:
    """Return the body of a serving plan; the assumptions are those of the model and the GPU, named first."""
    return InferPlanBody(
        **_shared(identity, answer, seconds=seconds, artifacts=artifacts.files, assumptions=assumptions),
        meets=answer.meets,
        meets_concurrency=answer.meets_concurrency,
        meets_slo=answer.meets_slo,
        plan=answer.plan,
        alternatives=answer.alternatives,
        advice=answer.advice,
        fleet=answer.fleet,
        missing_artifacts=artifacts.missing,
        omitted=(*answer.omitted, *artifacts.omitted),
    )


def _shared(
    identity: PlanIdentity,
    answer: TrainingAnswer | ServingAnswer,
    *,
    seconds: float,
    artifacts: Mapping[str, Any],
    assumptions: tuple[str, ...],
) -> dict[str, Any]:
    """Return what the bodies of both kinds of plan have."""
    return {
        **{entry.name: getattr(identity, entry.name) for entry in fields(identity)},
        "fits": answer.fits,
        "verdict": answer.verdict,
        "summary": answer.summary,
        "search": _timed(answer.search, seconds),
        "artifacts": artifacts,
        "assumptions": _once((*assumptions, *answer.assumptions)),
    }


def _timed(counts: SearchCounts, seconds: float) -> TimedSearch:
    return TimedSearch(
        layouts_considered=counts.layouts_considered,
        layouts_excluded=counts.layouts_excluded,
        layouts_fitting=counts.layouts_fitting,
        seconds=seconds,
    )


def _once(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))

"""What a request contradicts before any layout is formed: values out of range, degrees that are not the GPUs'."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.figures import counted, listed
from plimsoll.planners.ground.hardware import GpuCount
from plimsoll.planners.ground.terms import (
    HIGHEST_ZERO_STAGE,
    NVME,
    OFFLOAD_TARGETS,
    OFFLOADS,
    PIPELINE_SCHEDULES,
    RECOMPUTE_MODES,
)
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.rules.fields import DEGREES, DEGREES_OF_GPUS
from plimsoll.planners.search.rules.rule import RequestRule

MOST_NAMED_DEGREES = 8


def _below_one(question: TrainingQuestion) -> Iterator[tuple[str, str]]:
    for field in (*DEGREES, "context_all_to_all", "shard_group", "secondary_shard_group"):
        value = getattr(question.layout, field)
        if value is not None and value < 1:
            yield field, f"{field} must be at least 1, not {value}."


def _unknown_stage(question: TrainingQuestion) -> Iterator[tuple[str, str]]:
    stage = question.layout.zero_stage
    if stage is not None and not 0 <= stage <= HIGHEST_ZERO_STAGE:
        yield "zero_stage", f"zero_stage must be from 0 to {HIGHEST_ZERO_STAGE}, not {stage}."


def _other_product(question: TrainingQuestion) -> Iterator[tuple[str, str]]:
    """Yield the contradiction where the degrees cannot multiply to the number of GPUs."""
    request = question.layout
    fixed = {field: getattr(request, field) for field in DEGREES_OF_GPUS if getattr(request, field) is not None}
    if any(value < 1 for value in fixed.values()):
        return
    count, product = question.hardware.gpus, math.prod(fixed.values())
    shown = " x ".join(f"{field} {value}" for field, value in fixed.items())
    named = f"{shown} = {product}" if len(fixed) > 1 else shown
    if len(fixed) == len(DEGREES_OF_GPUS) and not count.minimum <= product <= count.maximum:
        detail = f"{named}, and there {_are_gpus(count)}."
    elif product > count.maximum:
        detail = f"{named} is too many: there {_are_gpus(count)}.{_would_do(fixed, count)}"
    elif count.minimum == count.maximum and count.minimum % product:
        detail = f"{named} does not divide {counted(count.minimum, 'GPU')}.{_would_do(fixed, count)}"
    else:
        return
    yield _at_fault(fixed, count), detail


def _would_do(fixed: Mapping[str, int], count: GpuCount) -> str:
    """Return which degrees the GPUs can form, where one alone is fixed and their number is; else nothing."""
    if len(fixed) > 1 or count.minimum != count.maximum:
        return ""
    (field,), gpus = fixed, count.maximum
    small = [divisor for divisor in range(1, math.isqrt(gpus) + 1) if gpus % divisor == 0]
    divisors = sorted({*small, *(gpus // divisor for divisor in small)})
    if len(divisors) > MOST_NAMED_DEGREES:
        return f" {field} must be a divisor of {gpus:,}."
    return f" {field} can be {listed([f'{divisor:,}' for divisor in divisors], 'or')}."


def _at_fault(fixed: Mapping[str, int], count: GpuCount) -> str:
    """Return the one degree that does not go into the GPUs by itself, or data_parallel where all others do together.

    Replicas are what the other degrees leave of the GPUs. Empty where neither is so.
    """
    uneven = [field for field, value in fixed.items() if not _goes_into(value, count)]
    if len(uneven) == 1:
        return uneven[0]
    others = math.prod(value for field, value in fixed.items() if field != "data_parallel")
    return "data_parallel" if "data_parallel" in fixed and _goes_into(others, count) else ""


def _goes_into(degree: int, count: GpuCount) -> bool:
    return degree <= count.maximum and not (count.minimum == count.maximum and count.minimum % degree)


def _are_gpus(count: GpuCount) -> str:
    if count.minimum == count.maximum:
        return f"{'is' if count.minimum == 1 else 'are'} {counted(count.minimum, 'GPU')}"
    return f"are {count.minimum:,} to {count.maximum:,} GPUs"


POSITIVE_DEGREES = RequestRule(name="degrees_are_positive", breaches=_below_one)
DEGREES_MULTIPLY_TO_GPUS = RequestRule(name="degrees_multiply_to_gpus", breaches=_other_product)
REQUEST_RULES: tuple[RequestRule, ...] = (
    POSITIVE_DEGREES,
    RequestRule(name="zero_stage_exists", breaches=_unknown_stage),
    DEGREES_MULTIPLY_TO_GPUS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of a question that makes sense only where `is_sensible` says so; None is no value."""

    pointer: str
    of: Callable[[TrainingQuestion], object]
    is_sensible: Callable[[object], bool]
    detail: str


def _one_of(pointer: str, of: Callable[[TrainingQuestion], object], choices: Sequence[str]) -> Value:
    field = pointer.rpartition("/")[2]
    return Value(
        pointer=pointer,
        of=of,
        is_sensible=lambda value: value in choices,
        detail=f"{field} must be one of {', '.join(choices)}.",
    )


def _positive(pointer: str, of: Callable[[TrainingQuestion], object]) -> Value:
    return Value(
        pointer=pointer,
        of=of,
        is_sensible=lambda value: isinstance(value, int) and value >= 1,
        detail=f"{pointer.rpartition('/')[2]} must be at least 1.",
    )


VALUES: tuple[Value, ...] = (
    _one_of("/layout/offload", lambda question: question.layout.offload, OFFLOADS),
    _one_of("/layout/pipeline_schedule", lambda question: question.layout.pipeline_schedule, PIPELINE_SCHEDULES),
    _one_of("/layout/offload_target", lambda question: question.layout.offload_target, OFFLOAD_TARGETS),
    Value(
        pointer="/layout/offload_target",
        of=lambda question: question.layout.offload if question.layout.offload_target == NVME else None,
        is_sensible=lambda offload: offload != "none",
        detail="offload 'none' puts nothing on NVMe. Say what to offload, or omit offload_target.",
    ),
    _one_of("/training/recompute", lambda question: question.recompute and question.recompute.mode, RECOMPUTE_MODES),
    _positive(
        "/training/recompute/full_layers", lambda question: question.recompute and question.recompute.full_layers
    ),
    _positive("/training/recompute/every", lambda question: question.recompute and question.recompute.every),
    _positive("/training/micro_batch_size", lambda question: question.micro_batch_size),
)


def check_values(question: TrainingQuestion) -> None:
    """Raise where a fixed value is no layout's at all."""
    for value in VALUES:
        given = value.of(question)
        if given is not None and not value.is_sensible(given):
            raise InvalidQuestion(value.detail, pointer=value.pointer)

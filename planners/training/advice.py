"""What would make a job fit: each change is planned before it is offered."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Protocol

from plimsoll.planners.ground.errors import PlanningStopped, PlimsollError
from plimsoll.planners.ground.hardware import GpuCount
from plimsoll.planners.plans import Advice, Alternative, Layout, TrainingAnswer
from plimsoll.planners.questions import LayoutRequest, TrainingQuestion
from plimsoll.planners.search.ranking import NEAR_EQUAL_FRACTION
from plimsoll.planners.stacks.profile import usual_precision
from plimsoll.planners.training.changes import (
    MOST_PAIRS,
    Change,
    changing_more,
    host_memory,
    in_pairs,
    keeping_the_result,
    on_gpus,
    together,
    together_with_more,
)
from plimsoll.planners.training.notes import OFFLOADED, recomputation

VERDICT_RANK = {"no": 0, "tight": 1, "fits": 3}
# Of a plan that has room only because states nobody wanted on the host lie there.
OFFLOADED_RANK = 2
# Kinds of changes that free the layout's field of that name.
FREED = ("tensor_parallel", "pipeline_parallel", "pipeline_layout")
# How an offer's reason tells its layout, and what of it lies on the host.
PLANNED_FOR_SPEED, ON_THE_HOST, ON_NVME = "Planned for speed: ", " on the host", " on NVMe"


class BestLayout(Protocol):
    """Returns the layout that a question's plan would have; where `only_room`, any that lacks room stands for others.

    May raise `PlanningStopped`.
    """

    def __call__(self, question: TrainingQuestion, *, only_room: bool = False) -> Alternative:
        """Return the layout."""
        ...


def advice_for(question: TrainingQuestion, answer: TrainingAnswer, best: BestLayout) -> Iterator[Advice]:
    """Yield the single changes after which the job fits better than `answer` does, in practitioners' order.

    All but the change of the number of GPUs are planned on the
    answer's. A change that still does not fit, that fits no better, or that the
    framework cannot do, is left out. Where nothing on the host is needed, that alone is said.
    """
    gpus = answer.plan.layout.gpus
    pinned = replace(on_gpus(question, GpuCount(minimum=gpus, maximum=gpus)), compare=())
    yield from _offered(host_memory(pinned, answer.plan.memory), question, answer, best)
    on_device = tuple(_offered(_off_the_host(pinned, answer), question, answer, best))
    if on_device:
        yield from on_device
        return
    first, fastest = None, math.inf
    for first in _offered(keeping_the_result(pinned), question, answer, best):
        fastest = min(fastest, first.step_seconds)
        yield first
    if first is None:
        # No one of them will do alone.
        pairs = () if answer.fits else itertools.islice(in_pairs(pinned), MOST_PAIRS)
        for first in _offered(itertools.chain(pairs, together(pinned)), question, answer, best):
            yield first
    further = changing_more(question, pinned, answer, with_drives=first is None)
    for first in _offered(further, question, answer, best):
        # Nobody buys GPUs that take longer than a change that costs nothing.
        if not (_buys(first, gpus) and first.step_seconds >= fastest):
            yield first
    if first is None:
        yield from _offered(together_with_more(question, pinned, answer), question, answer, best)


def _offered(
    changes: Iterable[Change],
    asked: TrainingQuestion,
    answer: TrainingAnswer,
    best: BestLayout,
) -> Iterator[Advice]:
    offered: set[str] = set()
    asked_before: list[TrainingQuestion] = []
    lora: Alternative | None = None
    for change in changes:
        if change.kind in offered or change.question in asked_before:
            continue
        asked_before.append(change.question)
        rank = _rank(answer.verdict, answer.plan.layout, change.question)
        if rank == OFFLOADED_RANK:
            change = _without_the_host(change)
        try:
            changed = _planned(change, asked, best, only_room=rank > VERDICT_RANK["no"])
        except PlanningStopped:
            raise
        except PlimsollError:
            # The change cannot be planned at all, so it is no advice.
            continue
        if _is_as_asked(change, changed.layout, asked):
            continue
        is_slower = changed.step_seconds >= answer.plan.step.seconds
        is_no_gain = answer.fits and is_slower and (change.kind == "gpus" or rank == OFFLOADED_RANK)
        if is_no_gain and _buys(change, answer.plan.layout.gpus):
            # Nobody buys GPUs that take longer than the plan, or than the host.
            continue
        if _rank(changed.verdict, changed.layout, change.question) > rank and not _gains_nothing(change, changed, lora):
            offered.add(change.kind)
            lora = changed if change.kind == "lora" else lora
            yield _offer(change, changed, answer, asked)


def _buys(change: Change | Advice, gpus: int) -> bool:
    """Return whether a change needs other GPUs, or more of them than these."""
    wanted = change.change.get("hardware.gpus", 0)
    return "hardware.gpu" in change.change or not isinstance(wanted, int) or wanted > gpus


def _is_as_asked(change: Change, layout: Layout, asked: TrainingQuestion) -> bool:
    """Return whether what a change frees is chosen as it was fixed."""
    if change.kind == "framework":
        return layout.framework == asked.framework
    return change.kind in FREED and getattr(layout, change.kind) == getattr(asked.layout, change.kind)


def _planned(change: Change, asked: TrainingQuestion, best: BestLayout, *, only_room: bool) -> Alternative:
    """Return the layout that the plan would have of what the offer tells.

    Of a range of GPUs and of all frameworks that is the plan with the number and the one that are chosen.
    """
    question = told = change.question
    chosen = best(question, only_room=only_room)
    if chosen.verdict == "no":
        return chosen
    if question.hardware.gpus.minimum != question.hardware.gpus.maximum:
        told = on_gpus(told, GpuCount(minimum=chosen.layout.gpus, maximum=chosen.layout.gpus))
    if question.framework != asked.framework and change.change.get("framework") is None:
        told = replace(told, framework=chosen.layout.framework, framework_version=None)
    return chosen if told is question else best(told, only_room=only_room)


def _without_the_host(change: Change) -> Change:
    """Return the change with nothing on the host: what it is offered for, even where the host would be faster."""
    layout = replace(change.question.layout, offload="none")
    shown = {**change.change, "layout": {"offload": "none"}} if "layout" in change.change else change.change
    return replace(change, change=shown, question=replace(change.question, layout=layout))


def leaves_to_be_desired(question: TrainingQuestion, answer: TrainingAnswer) -> bool:
    """Return whether advice is due: the plan has no room, or only with states on the host that nobody asked for."""
    return _rank(answer.verdict, answer.plan.layout, question) < VERDICT_RANK["fits"]


def _rank(verdict: str, layout: Layout, question: TrainingQuestion) -> int:
    is_offloaded = verdict == "fits" and layout.offload != "none" and question.layout.offload in (None, "none")
    return OFFLOADED_RANK if is_offloaded else VERDICT_RANK[verdict]


def _gains_nothing(change: Change, changed: Alternative, lora: Alternative | None) -> bool:
    """Return whether four bits are offered where adapters on 16 bits take neither more memory nor more time."""
    if change.kind != "qlora" or lora is None:
        return False
    is_slower = changed.step_seconds >= lora.step_seconds * (1 - NEAR_EQUAL_FRACTION)
    return changed.peak_bytes >= lora.peak_bytes and is_slower


def _offer(change: Change, changed: Alternative, answer: TrainingAnswer, asked: TrainingQuestion) -> Advice:
    layout = changed.layout
    chosen = {
        "hardware.gpus": layout.gpus,
        "framework": layout.framework,
        "layout.tensor_parallel": layout.tensor_parallel,
        "layout.pipeline_parallel": layout.pipeline_parallel,
        "layout.pipeline_layout": layout.pipeline_layout,
        "training.micro_batch_size": layout.micro_batch_size,
        "training.recompute": layout.recompute_asked,
        "training.fused_cross_entropy": layout.fused_cross_entropy,
    }
    shown = {field: chosen[field] if value is None else value for field, value in change.change.items()}
    return Advice(
        change=shown | _further(change.question, layout, asked, shown),
        peak_bytes=changed.peak_bytes,
        step_seconds=changed.step_seconds,
        peak_bytes_difference=changed.peak_bytes - answer.plan.memory.peak_bytes,
        step_seconds_difference=changed.step_seconds - answer.plan.step.seconds,
        fits=changed.verdict != "no",
        verdict=changed.verdict,
        reason=f"{change.reason} {_as_planned(layout)}",
    )


def _further(
    changed: TrainingQuestion, layout: Layout, asked: TrainingQuestion, shown: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what else tells the offer's question from the one that was asked: with all of it said, its plan comes."""
    further: dict[str, Any] = {}
    if changed.framework != asked.framework and "framework" not in shown:
        further["framework"] = layout.framework
    if changed.framework_version != asked.framework_version:
        further["framework_version"] = changed.framework_version
    if "layout" not in shown and changed.layout == LayoutRequest() != asked.layout:
        further["layout"] = {}
    elif "layout" not in shown:
        further |= {
            f"layout.{field.name}": getattr(layout, field.name)
            for field in fields(LayoutRequest)
            if getattr(changed.layout, field.name) != getattr(asked.layout, field.name)
            and f"layout.{field.name}" not in shown
        }
    framework = further.get("framework", shown.get("framework", asked.framework))
    if usual_precision(framework) != usual_precision(asked.framework) and "training.precision" not in shown:
        # Who said none would get another with the other framework.
        further["training.precision"] = changed.precision
    if framework != asked.framework and changed.attention != "flash" and "training.attention" not in shown:
        further["training.attention"] = changed.attention
    if asked.hardware.gpus.minimum != asked.hardware.gpus.maximum and "hardware.gpus" not in shown:
        further["hardware.gpus"] = layout.gpus
    return further


def _as_planned(layout: Layout) -> str:
    """Return the layout of an offer's peak and time: the fastest that fits, not the one of the least memory."""
    where = ON_NVME if layout.offload_target == "nvme" else ON_THE_HOST
    offload = "" if layout.offload == "none" else f", {OFFLOADED[layout.offload]}{where}"
    return (
        f"{PLANNED_FOR_SPEED}{layout.framework}, ZeRO {layout.zero_stage}, micro-batch {layout.micro_batch_size}, "
        f"recompute {recomputation(layout)}{offload}."
    )


def _off_the_host(pinned: TrainingQuestion, answer: TrainingAnswer) -> Iterator[Change]:
    """Yield the same question for a plan whose states lie on the host because that is faster, not for want of room."""
    if _rank(answer.verdict, answer.plan.layout, pinned) == OFFLOADED_RANK:
        yield Change(kind="off the host", change={}, question=pinned, reason="It fits without host memory too.")

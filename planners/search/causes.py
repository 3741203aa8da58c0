"""What sets a layout that can exist apart from the plan, in the order in which the search prefers layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from plimsoll.planners.ground.figures import counted, duration, figure
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.ground.units import GIB, GIGA
from plimsoll.planners.layouts.candidates import layout_of
from plimsoll.planners.memory.host_words import host_shortage, is_host_sure, lacking_host_bytes
from plimsoll.planners.memory.peak import VERDICT_NAMES, memory_of
from plimsoll.planners.plans import Layout, Memory, StageMemory, Step
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.objectives import latest_step_seconds, run_steps, wants_fewest_gpus
from plimsoll.planners.search.pool import Pool
from plimsoll.planners.search.ranking import NEAR_EQUAL_FRACTION, PARTS_OF_OFFLOAD, complexity
from plimsoll.planners.search.rules.fields import TRAINING_FIELDS, named_fields
from plimsoll.planners.timing.ties import are_tied, tie_fraction

# A part of the step is named as a cause when it makes up so much of the difference.
LEAST_SHARE_OF_DIFFERENCE = 0.05
PART_NAMES = {
    "forward": "forward computation",
    "backward": "backward computation",
    "recompute": "recomputation",
    "tensor_parallel": "tensor-parallel traffic",
    "context_parallel": "context-parallel traffic",
    "expert_parallel": "exchange of tokens with their experts",
    "pipeline_bubble": "pipeline bubble",
    "data_parallel": "data-parallel traffic",
    "optimizer": "optimizer step",
    "offload": "offload traffic",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A layout with what it needs and takes; `moving_parts` counts what the search prefers fewer of.

    `waiting_bytes` wait on a GPU for their copies to the host, beside the account.
    """

    layout: Layout
    memory: Memory
    step: Step
    verdict: str
    moving_parts: float
    waiting_bytes: float


def planned_of(question: TrainingQuestion, pool: Pool, index: int) -> Planned:
    """Return layout `index` of a pool with its memory and step."""
    job, hardware = pool.job, question.hardware
    step = pool.step(index, hardware)
    return Planned(
        layout=layout_of(pool.layouts, index, job),
        memory=memory_of(pool.layouts, index, job, hardware),
        step=step,
        verdict=VERDICT_NAMES[int(pool.verdicts[index])],
        moving_parts=float(complexity(pool.layouts.take([index]))[0]),
        waiting_bytes=pool.waiting_bytes(index, step, hardware),
    )


Cause = tuple[str, str, str]


def judgement(question: TrainingQuestion, other: Planned, chosen: Planned) -> tuple[str, list[Cause]]:
    """Return the outcome and its causes, in the order in which the search prefers layouts."""
    if other.layout == chosen.layout:
        return "chosen", []
    if other.verdict == "no":
        causes = [*_memory_causes(other.memory), *_host_causes(other.memory, question.hardware)]
        return "does_not_fit", [*causes, *_least_memory(other, chosen)]
    slower = list(_time_causes(other, chosen, question.hardware))
    if chosen.verdict == "no":
        return "outside_request", list(_request_causes(question, other))
    late = _late_causes(question, other, chosen)
    if late:
        return "late", [*late, *slower]
    if _counts_gpus(question, chosen) and other.layout.gpus > chosen.layout.gpus:
        detail = f"Takes {other.layout.gpus:,} GPUs; {chosen.layout.gpus:,} are enough."
        return "more_gpus", [("fewest_gpus", "", detail), *slower]
    if other.verdict == "tight" and chosen.verdict == "fits":
        return "tight", [_tight_cause(other, question.hardware), *slower]
    return _by_objective(question, other, chosen, slower)


def _by_objective(
    question: TrainingQuestion, other: Planned, chosen: Planned, slower: list[Cause]
) -> tuple[str, list[Cause]]:
    """Return how two layouts that both fit compare in time, or in GPU time where cost is the objective."""
    times, outcome, unit = 1.0, "slower", "per step"
    if question.objective == "cost":
        times, outcome, unit = other.layout.gpus / chosen.layout.gpus, "costlier", "per step on as many GPUs"
    ratio = other.step.seconds * times / chosen.step.seconds
    if ratio > 1.0 + NEAR_EQUAL_FRACTION:
        detail = (
            f"{100 * (ratio - 1):,.0f} % {outcome}: {duration(other.step.seconds * times)} {unit} rather than "
            f"{duration(chosen.step.seconds)}."
        )
        return outcome, [(question.objective, "", detail), *_tie_cause(question, other, chosen), *slower]
    outside = list(_request_causes(question, other))
    if outside:
        return "outside_request", outside
    near = f"Within {100 * NEAR_EQUAL_FRACTION:.0f} % of the plan's time"
    moved, least = (each.moving_parts // PARTS_OF_OFFLOAD for each in (other, chosen))
    if moved > least:
        what = "states and activations" if moved > 1 else "states or activations"
        plan = "keeps one of them on the device" if least else "keeps all on the device"
        return "near_equal", [("simpler_of_equals", "", f"{near}, but keeps {what} on the host; the plan {plan}.")]
    if moved == least > 0 and other.step.seconds > chosen.step.seconds:
        return "near_equal", [("first_of_equals", "", f"{near}; of layouts that offload the faster goes first.")]
    if other.moving_parts > chosen.moving_parts:
        detail = f"{near}, but less simple: {_shown(other):.0f} moving parts rather than {_shown(chosen):.0f}."
        return "near_equal", [("simpler_of_equals", "", detail)]
    return "near_equal", [("first_of_equals", "", f"{near} and no simpler; the plan has the lower peak or time.")]


def _tie_cause(question: TrainingQuestion, other: Planned, chosen: Planned) -> Iterator[Cause]:
    """Yield that the evidence does not say which of two layouts of as many GPUs is faster, where it does not."""
    experts = bool(question.model.experts_per_token)
    fraction = tie_fraction(other.layout.framework, chosen.layout.framework, question.hardware, experts=experts)
    if other.layout.gpus == chosen.layout.gpus and are_tied(other.step.seconds, chosen.step.seconds, fraction):
        detail = (
            f"Within {fraction:.0%} two layouts are equal within the band: measured pairs do not tell which is faster."
        )
        yield ("equal_within_band", "", detail)


def _memory_causes(memory: Memory) -> Iterator[Cause]:
    """Yield each stage that exceeds the limit, the worst first."""
    over = [stage for stage in memory.stages if stage.peak_bytes > memory.limit_bytes]
    for stage in sorted(over, key=lambda stage: (-stage.peak_bytes, stage.stage)):
        yield ("memory", "", _too_much(stage, memory.limit_bytes))


def _host_causes(memory: Memory, hardware: Hardware) -> Iterator[Cause]:
    if lacking_host_bytes(memory):
        yield ("host_memory", "", host_shortage(memory, is_given=hardware.host_memory_bytes is not None))


def _too_much(stage: StageMemory, limit_bytes: int) -> str:
    items = {entry.name: getattr(stage.items, entry.name) for entry in fields(stage.items)}
    largest = sorted(items, key=lambda name: -items[name])[:2]
    shown = " and ".join(f"{items[name] / GIB:,.1f} GiB of {name.replace('_', ' ')}" for name in largest)
    return (
        f"Out of memory by {(stage.peak_bytes - limit_bytes) / GIB:,.1f} GiB on stage {stage.stage} in {stage.phase}: "
        f"each GPU needs {stage.peak_bytes / GIB:,.1f} of {limit_bytes / GIB:,.1f} GiB, most of it {shown}."
    )


def _least_memory(other: Planned, chosen: Planned) -> Iterator[Cause]:
    more = other.memory.peak_bytes - chosen.memory.peak_bytes
    if chosen.verdict == "no" and more > 0:
        yield (
            "least_memory",
            "",
            f"Needs {more / GIB:.1f} GiB more than the closest layout, which does not fit either.",
        )


def _tight_cause(other: Planned, hardware: Hardware) -> Cause:
    memory = other.memory
    if not is_host_sure(memory):
        return ("host_memory", "", host_shortage(memory, is_given=hardware.host_memory_bytes is not None))
    more = f"perhaps up to {memory.peak_high_bytes / GIB:.1f}"
    if other.waiting_bytes and memory.peak_high_bytes <= memory.limit_bytes:
        more = f"and up to {other.waiting_bytes / GIB:.1f} more that wait for their copies to the host"
    detail = (
        f"Fits only tightly: {memory.peak_bytes / GIB:.1f} GiB, {more}, of {memory.limit_bytes / GIB:.1f} GiB; the "
        "plan fits with room."
    )
    return ("margin", "", detail)


def _late_causes(question: TrainingQuestion, other: Planned, chosen: Planned) -> list[Cause]:
    steps, latest = run_steps(question), latest_step_seconds(question)
    if steps is None or other.step.seconds <= latest or chosen.step.seconds > latest:
        return []
    detail = (
        f"Misses the deadline: {steps:,} steps take {duration(other.step.seconds * steps)}, and there are "
        f"{duration(latest * steps)}."
    )
    return [("deadline", "", detail)]


def _counts_gpus(question: TrainingQuestion, chosen: Planned) -> bool:
    """Return whether fewer GPUs go before less time, as `ranking.best_index` has it."""
    return wants_fewest_gpus(question) and chosen.step.seconds <= latest_step_seconds(question)


def _request_causes(question: TrainingQuestion, other: Planned) -> Iterator[Cause]:
    """Yield what the request fixed and this layout has otherwise."""
    for field in sorted(named_fields(question)):
        name = field.rpartition("/")[2]
        part: Any = question if field in TRAINING_FIELDS else question.layout
        planned: Any = other.layout
        if name != field:
            part, planned = question.layout.overlap, other.layout.overlap
        wanted = question.recompute.mode if field == "recompute" and question.recompute else getattr(part, name, None)
        has = getattr(planned, name)
        is_unused = field == "offload_target" and other.layout.offload == "none"
        if wanted is not None and wanted != has and not is_unused:
            fixed = f"{field.replace('/', '.')} {_wire(wanted)}"
            yield ("request", field, f"The request fixes {fixed}, and this layout has {_wire(has)}.")
    if question.framework not in ("any", other.layout.framework):
        detail = f"The request fixes framework {question.framework}, and this layout runs on {other.layout.framework}."
        yield ("request", "framework", detail)


def _wire(value: object) -> object:
    """Return a value as the request spells it."""
    return str(value).lower() if isinstance(value, bool) else value


def _time_causes(other: Planned, chosen: Planned, hardware: Hardware) -> Iterator[Cause]:
    """Yield the parts of the step that take longer than the plan's, the largest difference first."""
    more = {name: getattr(other.step.parts, name) - getattr(chosen.step.parts, name) for name in PART_NAMES}
    gained = sum(seconds for seconds in more.values() if seconds > 0)
    for name in sorted(more, key=lambda name: -more[name]):
        if more[name] <= LEAST_SHARE_OF_DIFFERENCE * gained or more[name] <= 0:
            return
        detail = f"{duration(more[name], 2)} more of {PART_NAMES[name]}{_because(name, other.layout, hardware)}."
        yield (name, _field_of(name), detail)


def _field_of(part: str) -> str:
    same = {
        name: name
        for name in ("tensor_parallel", "context_parallel", "expert_parallel", "data_parallel", "recompute", "offload")
    }
    return {**same, "pipeline_bubble": "pipeline_parallel"}.get(part, "")


def _because(part: str, layout: Layout, hardware: Hardware) -> str:
    """Return what of the layout makes a part of the step long, where one thing can be named."""
    node = hardware.gpus_per_node
    if part in ("tensor_parallel", "context_parallel"):
        ranks = layout.tensor_parallel * (layout.context_parallel if part == "context_parallel" else 1)
        if ranks > node:
            return (
                f": groups of {ranks} ranks span several nodes of {node} GPUs and talk at "
                f"{figure(hardware.gpu.nic_bytes_per_second / GIGA)} GB/s per GPU instead of "
                f"{figure(hardware.gpu.link_bytes_per_second / GIGA)}"
            )
        return f" among {ranks} ranks of a node" if ranks > 1 else ""
    if part == "pipeline_bubble":
        return (
            f": {layout.pipeline_parallel} stages are filled and drained for "
            f"{counted(layout.gradient_accumulation_steps, 'micro-batch', 'micro-batches')}"
        )
    if part == "expert_parallel" and layout.expert_parallel > 1:
        return f" among {layout.expert_parallel} ranks"
    if part == "data_parallel":
        return f" (ZeRO stage {layout.zero_stage} over {counted(layout.shard_group, 'rank')})"
    if part == "recompute":
        return f" ({layout.recompute})"
    return ""


def _shown(planned: Planned) -> float:
    """Return a layout's moving parts, offload counted as often as it is one."""
    return planned.moving_parts % PARTS_OF_OFFLOAD

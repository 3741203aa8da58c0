"""Checks of the degrees a client fixed, before any search: what cannot exist raises at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from plimsoll.planners.ground.errors import BrokenRule, ImpossibleLayout, InvalidQuestion
from plimsoll.planners.ground.figures import counted, listed
from plimsoll.planners.ground.hardware import GpuCount
from plimsoll.planners.jobs.job import PIPELINE_SCHEDULES
from plimsoll.planners.layouts.candidates import HIGHEST_ZERO_STAGE, OFFLOAD_TARGETS, RECOMPUTE_MODES
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.violations import NO_EXPERTS, Violation, whole_heads
from plimsoll.planners.stacks.profile import Profile

DEGREES = ("data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel")


def check_fixed(question: TrainingQuestion) -> None:
    """Raise `ImpossibleLayout` with every contradiction where a fixed layout can exist on no framework."""
    check_values(question)
    violations = fixed_violations(question)
    if violations:
        raise impossible(violations)


def fixed_violations(question: TrainingQuestion) -> tuple[Violation, ...]:
    """Return every rule that the fixed degrees break whatever the others are."""
    return (
        *_ranges(question),
        *_product(question),
        *_heads(question),
        *_chunks(question),
        *_batch(question),
        *_groups(question),
    )


def impossible(violations: Sequence[Violation]) -> ImpossibleLayout:
    """Return the error of broken rules: the first one's words and field, and all of them beside."""
    first = violations[0]
    return ImpossibleLayout(
        first.detail,
        rule=first.rule,
        pointer=first.pointer,
        broken=tuple(BrokenRule(rule=each.rule, detail=each.detail, pointer=each.pointer) for each in violations),
    )


def check_framework(question: TrainingQuestion, profile: Profile) -> str | None:
    """Return the pointer of a fixed choice that a framework cannot have, or None."""
    return next((violation.pointer for violation in framework_violations(question, profile)), None)


def framework_violations(question: TrainingQuestion, profile: Profile) -> tuple[Violation, ...]:
    """Return every fixed choice that a framework cannot have."""
    can, request, name = profile.can, question.layout, profile.name
    found: list[tuple[str, str]] = []
    for able, field in (
        (can.tensor_parallel, "tensor_parallel"),
        (can.pipeline_parallel, "pipeline_parallel"),
        (can.virtual_pipeline, "virtual_pipeline"),
        (can.context_parallel, "context_parallel"),
        (can.expert_parallel, "expert_parallel"),
    ):
        degree = getattr(request, field) or 1
        if not able and degree > 1:
            found.append((field, f"With {name}, {field} must be 1, not {degree}."))
    if request.zero_stage is not None and request.zero_stage not in can.zero_stages:
        known = listed([str(stage) for stage in can.zero_stages], "or")
        found.append(("zero_stage", f"With {name}, zero_stage must be {known}, not {request.zero_stage}."))
    if request.shard_group is not None and not any(can.zero_stages):
        found.append(("shard_group", f"{name} shards nothing; omit shard_group."))
    if request.offload is not None and request.offload not in can.offload:
        found.append(("offload", f"With {name}, offload must be {listed(can.offload, 'or')}, not {request.offload}."))
    if request.offload_target is not None and request.offload_target not in can.offload_targets:
        known = listed(can.offload_targets, "or")
        found.append(("offload_target", f"With {name}, offload_target must be {known}, not {request.offload_target}."))
    if request.pipeline_schedule is not None and request.pipeline_schedule not in can.pipeline_schedules:
        known = listed(can.pipeline_schedules, "or")
        told = f"With {name}, pipeline_schedule must be {known}, not {request.pipeline_schedule}."
        found.append(("pipeline_schedule", told if known else f"{name} has no pipelines; omit pipeline_schedule."))
    if request.sequence_parallel and not any(can.sequence_parallel):
        found.append(("sequence_parallel", f"{name} has no sequence parallelism; sequence_parallel must be false."))
    if question.activation_offload and can.activation_offload == "none":
        found.append(("activation_offload", f"{name} cannot offload activations; activation_offload must be false."))
    if question.fused_cross_entropy and not can.fused_cross_entropy:
        found.append(("fused_cross_entropy", f"{name} has no fused cross-entropy; fused_cross_entropy must be false."))
    wanted = question.recompute
    if wanted is not None:
        needed = wanted.mode
        if wanted.full_layers is not None:
            needed = "full_layers"
        elif wanted.every is not None:
            needed = "every"
        elif wanted.modules:
            needed = "modules"
        if needed not in can.recompute:
            found.append(("recompute", f"With {name}, recompute must be {listed(can.recompute, 'or')}, not {needed}."))
    return tuple(Violation(rule="framework", field=field, detail=detail) for field, detail in found)


def check_values(question: TrainingQuestion) -> None:
    """Raise where a fixed value is no layout's at all, or is not planned yet."""
    request = question.layout
    if request.offload is not None and request.offload not in OFFLOAD_TARGETS:
        raise InvalidQuestion(f"offload must be one of {', '.join(OFFLOAD_TARGETS)}.", pointer="/layout/offload")
    if request.pipeline_schedule not in (None, *PIPELINE_SCHEDULES):
        known = ", ".join(PIPELINE_SCHEDULES)
        raise InvalidQuestion(f"pipeline_schedule must be one of {known}.", pointer="/layout/pipeline_schedule")
    if request.offload_target not in (None, "cpu", "nvme"):
        raise InvalidQuestion("offload_target must be cpu or nvme.", pointer="/layout/offload_target")
    if request.offload_target == "nvme" and request.offload == "none":
        raise InvalidQuestion(
            "offload 'none' puts nothing on NVMe. Say what to offload, or omit offload_target.",
            pointer="/layout/offload_target",
        )
    if question.recompute is not None and question.recompute.mode not in RECOMPUTE_MODES:
        raise InvalidQuestion(f"recompute must be one of {', '.join(RECOMPUTE_MODES)}.", pointer="/training/recompute")
    full_layers = question.recompute.full_layers if question.recompute else None
    if full_layers is not None and full_layers < 1:
        raise InvalidQuestion("full_layers must be at least 1.", pointer="/training/recompute/full_layers")
    every = question.recompute.every if question.recompute else None
    if every is not None and every < 1:
        raise InvalidQuestion("every must be at least 1.", pointer="/training/recompute/every")
    if question.micro_batch_size is not None and question.micro_batch_size < 1:
        raise InvalidQuestion("micro_batch_size must be at least 1.", pointer="/training/micro_batch_size")


def _ranges(question: TrainingQuestion) -> Iterator[Violation]:
    request = question.layout
    for field in (*DEGREES, "virtual_pipeline", "expert_parallel", "shard_group"):
        value = getattr(request, field)
        if value is not None and value < 1:
            yield Violation(
                rule="degrees_are_positive", field=field, detail=f"{field} must be at least 1, not {value}."
            )
    stage = request.zero_stage
    if stage is not None and not 0 <= stage <= HIGHEST_ZERO_STAGE:
        yield Violation(
            rule="zero_stage_exists", field="zero_stage", detail=f"zero_stage must be from 0 to 3, not {stage}."
        )


def _product(question: TrainingQuestion) -> Iterator[Violation]:
    """Yield the contradiction where the degrees cannot multiply to the number of GPUs."""
    request = question.layout
    fixed = {field: getattr(request, field) for field in DEGREES if getattr(request, field) is not None}
    if any(value < 1 for value in fixed.values()):
        return
    count, product = question.hardware.gpus, math.prod(fixed.values())
    shown = " x ".join(f"{field} {value}" for field, value in fixed.items())
    named = f"{shown} = {product}" if len(fixed) > 1 else shown
    if len(fixed) == len(DEGREES) and not count.minimum <= product <= count.maximum:
        detail = f"{named}, and there {_are_gpus(question)}."
    elif product > count.maximum:
        detail = f"{named} is too many: there {_are_gpus(question)}."
    elif count.minimum == count.maximum and count.minimum % product:
        detail = f"{named} does not divide {counted(count.minimum, 'GPU')}."
    else:
        return
    yield Violation(rule="degrees_multiply_to_gpus", field=_at_fault(fixed, count), detail=detail)


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


def _heads(question: TrainingQuestion) -> Iterator[Violation]:
    tensor, model = question.layout.tensor_parallel or 1, question.model
    counts = (("attention heads", model.attention_heads), ("key-value heads", model.key_value_heads))
    uneven = [f"the {count} {name}" for name, count in counts if count % tensor] if tensor > 0 else []
    if uneven:
        yield Violation(
            rule="heads_divide",
            field="tensor_parallel",
            detail=f"tensor_parallel {tensor} does not divide {' nor '.join(uneven)}. {whole_heads(model)}",
        )


def _chunks(question: TrainingQuestion) -> Iterator[Violation]:
    stages, virtual = question.layout.pipeline_parallel or 1, question.layout.virtual_pipeline or 1
    if stages * virtual > question.model.num_layers:
        yield Violation(
            rule="stages_have_layers",
            field="pipeline_parallel" if question.layout.pipeline_parallel else "virtual_pipeline",
            detail=f"pipeline_parallel {stages} x virtual_pipeline {virtual} = {stages * virtual} pipeline chunks "
            f"need at least as many layers, and the model has {question.model.num_layers}.",
        )


def _batch(question: TrainingQuestion) -> Iterator[Violation]:
    data, micro = question.layout.data_parallel or 1, question.micro_batch_size or 1
    if data > 0 and question.global_batch_size % (data * micro):
        yield Violation(
            rule="batch_divides",
            field="data_parallel" if question.layout.data_parallel else "micro_batch_size",
            detail=f"global_batch_size {question.global_batch_size} is not a multiple of data_parallel {data} x "
            f"micro_batch_size {micro} = {data * micro}.",
        )


def _groups(question: TrainingQuestion) -> Iterator[Violation]:
    request = question.layout
    data, group = request.data_parallel, request.shard_group
    if group is not None and data is not None and group > 0 and (group > data or data % group):
        yield Violation(
            rule="shard_group_divides",
            field="shard_group",
            detail=f"shard_group {group} does not divide data_parallel {data}.",
        )
    experts = max(weight.experts for block in question.model.layers for weight in block.weights)
    degree = request.expert_parallel or 1
    if degree > 0 and experts % degree:
        yield Violation(
            rule="experts_divide",
            field="expert_parallel",
            detail=f"expert_parallel {degree} does not divide the {experts} experts." if experts > 1 else NO_EXPERTS,
        )
    if request.sequence_parallel and request.tensor_parallel == 1:
        yield Violation(
            rule="sequence_parallel_needs_tensor",
            field="sequence_parallel",
            detail="sequence_parallel needs tensor_parallel above 1, and 1 is fixed.",
        )


def _are_gpus(question: TrainingQuestion) -> str:
    count = question.hardware.gpus
    if count.minimum == count.maximum:
        return f"{'is' if count.minimum == 1 else 'are'} {counted(count.minimum, 'GPU')}"
    return f"are {count.minimum:,} to {count.maximum:,} GPUs"

"""Checks of the degrees a client fixed, before any search: what cannot exist raises at once."""

from __future__ import annotations

import math

from planners.errors import ImpossibleLayout, InvalidQuestion
from planners.layout.candidates import OFFLOAD_TARGETS, RECOMPUTE_MODES
from planners.memory.profile import Profile
from planners.questions import TrainingQuestion

DEGREES = ("data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel")
HIGHEST_ZERO_STAGE = 3


def check_fixed(question: TrainingQuestion) -> None:
    """Raise `ImpossibleLayout` with the field where a fixed layout can exist on no framework."""
    _check_ranges(question)
    _check_product(question)
    request, model = question.layout, question.model
    tensor = request.tensor_parallel or 1
    for name, count in (("attention heads", model.attention_heads), ("key-value heads", model.key_value_heads)):
        if count % tensor:
            raise _impossible(
                "tensor_parallel", "heads_divide", f"tensor_parallel {tensor} does not divide the {count} {name}."
            )
    chunks = (request.pipeline_parallel or 1) * (request.virtual_pipeline or 1)
    if chunks > model.num_layers:
        raise _impossible(
            "pipeline_parallel",
            "stages_have_layers",
            f"{chunks} pipeline chunks need more than {model.num_layers} layers.",
        )
    _check_batch(question)
    _check_groups(question)


def check_framework(question: TrainingQuestion, profile: Profile) -> str | None:
    """Return the pointer of a fixed choice that a framework cannot have, or None."""
    can, request = profile.can, question.layout
    for able, field in (
        (can.tensor_parallel, "tensor_parallel"),
        (can.pipeline_parallel, "pipeline_parallel"),
        (can.virtual_pipeline, "virtual_pipeline"),
        (can.context_parallel, "context_parallel"),
        (can.expert_parallel, "expert_parallel"),
    ):
        if not able and (getattr(request, field) or 1) > 1:
            return f"/layout/{field}"
    if request.zero_stage is not None and request.zero_stage not in can.zero_stages:
        return "/layout/zero_stage"
    if request.offload is not None and request.offload not in can.offload:
        return "/layout/offload"
    if request.offload_target is not None and request.offload_target not in can.offload_targets:
        return "/layout/offload_target"
    if request.sequence_parallel and not any(can.sequence_parallel):
        return "/layout/sequence_parallel"
    if question.activation_offload and can.activation_offload == "none":
        return "/training/activation_offload"
    if question.fused_cross_entropy and not can.fused_cross_entropy:
        return "/training/fused_cross_entropy"
    wanted = question.recompute
    if wanted is not None:
        needed = "full_layers" if wanted.full_layers is not None else wanted.mode
        if needed not in can.recompute:
            return "/training/recompute"
    return None


def _check_ranges(question: TrainingQuestion) -> None:
    request = question.layout
    for field in (*DEGREES, "virtual_pipeline", "expert_parallel", "shard_group"):
        value = getattr(request, field)
        if value is not None and value < 1:
            raise _impossible(field, "degrees_are_positive", f"{field} must be at least 1, not {value}.")
    stage = request.zero_stage
    if stage is not None and not 0 <= stage <= HIGHEST_ZERO_STAGE:
        raise _impossible("zero_stage", "zero_stage_exists", f"zero_stage must be from 0 to 3, not {stage}.")
    if request.offload is not None and request.offload not in OFFLOAD_TARGETS:
        raise InvalidQuestion(f"offload must be one of {', '.join(OFFLOAD_TARGETS)}.", pointer="/layout/offload")
    if request.offload_target not in (None, "cpu", "nvme"):
        raise InvalidQuestion("offload_target must be cpu or nvme.", pointer="/layout/offload_target")
    if request.offload_target == "nvme" and request.offload == "none":
        raise InvalidQuestion(
            "offload 'none' puts nothing on NVMe. Say what to offload, or leave offload_target away.",
            pointer="/layout/offload_target",
        )
    if question.recompute is not None and question.recompute.mode not in RECOMPUTE_MODES:
        raise InvalidQuestion(f"recompute must be one of {', '.join(RECOMPUTE_MODES)}.", pointer="/training/recompute")
    full_layers = question.recompute.full_layers if question.recompute else None
    if full_layers is not None and full_layers < 1:
        raise InvalidQuestion("full_layers must be at least 1.", pointer="/training/recompute/full_layers")


def _check_product(question: TrainingQuestion) -> None:
    """Raise when the degrees cannot multiply to the number of GPUs."""
    fixed = {field: getattr(question.layout, field) for field in DEGREES if getattr(question.layout, field) is not None}
    product = math.prod(fixed.values())
    count = question.hardware.gpus
    shown = " x ".join(f"{field} {value}" for field, value in fixed.items())
    if len(fixed) == len(DEGREES) and not count.minimum <= product <= count.maximum:
        raise _impossible(
            "", "degrees_multiply_to_gpus", f"{shown} = {product}, and there are {_counted(question)} GPUs."
        )
    if product > count.maximum:
        raise _impossible("", "degrees_multiply_to_gpus", f"{shown} = {product} exceeds {_counted(question)} GPUs.")
    if count.minimum == count.maximum and count.minimum % product:
        raise _impossible("", "degrees_multiply_to_gpus", f"{shown} = {product} does not divide {count.minimum} GPUs.")


def _check_batch(question: TrainingQuestion) -> None:
    data = question.layout.data_parallel or 1
    micro = 1 if question.micro_batch_size is None else question.micro_batch_size
    if micro < 1:
        raise InvalidQuestion("micro_batch_size must be at least 1.", pointer="/training/micro_batch_size")
    if question.global_batch_size % (data * micro):
        field = "data_parallel" if question.layout.data_parallel else ""
        raise ImpossibleLayout(
            f"global_batch_size {question.global_batch_size} is no multiple of "
            f"data_parallel {data} x micro_batch_size {micro}.",
            rule="batch_divides",
            pointer=f"/layout/{field}" if field else "/training/micro_batch_size",
        )


def _check_groups(question: TrainingQuestion) -> None:
    request = question.layout
    data, group = request.data_parallel, request.shard_group
    if group is not None and data is not None and (group > data or data % group):
        raise _impossible(
            "shard_group", "shard_group_divides", f"shard_group {group} does not divide data_parallel {data}."
        )
    experts = max(weight.experts for block in question.model.layers for weight in block.weights)
    degree = request.expert_parallel or 1
    if experts % degree:
        counted = f"{experts} experts" if experts > 1 else "one feed-forward of a dense model"
        raise _impossible(
            "expert_parallel", "experts_divide", f"expert_parallel {degree} does not divide the {counted}."
        )
    if request.sequence_parallel and request.tensor_parallel == 1:
        raise _impossible(
            "sequence_parallel", "sequence_parallel_needs_tensor", "sequence_parallel needs tensor_parallel above 1."
        )


def _impossible(field: str, rule: str, detail: str) -> ImpossibleLayout:
    return ImpossibleLayout(detail, rule=rule, pointer=f"/layout/{field}" if field else "/layout")


def _counted(question: TrainingQuestion) -> str:
    count = question.hardware.gpus
    return str(count.minimum) if count.minimum == count.maximum else f"{count.minimum} to {count.maximum}"

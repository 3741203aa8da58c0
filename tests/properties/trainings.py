"""Training jobs drawn from the whole catalogue, and layouts that a client could fix of them."""

from __future__ import annotations

import functools
from dataclasses import replace
from math import gcd

from hypothesis import assume
from hypothesis import strategies as st

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.ground.hardware import GpuCount, Hardware
from plimsoll.planners.ground.terms import HIGHEST_ZERO_STAGE
from plimsoll.planners.questions import LayoutRequest, Lora, Recompute, TrainingQuestion
from plimsoll.planners.search.able import problems
from plimsoll.planners.search.bases import divisors
from plimsoll.planners.stacks.profile import Profile, load_profile, stack_names
from plimsoll.planners.training.planning import check_question

GPUS = ("h100-sxm-80gb", "a100-sxm-40gb", "rtx-4090-24gb", "h200-sxm-141gb")
COUNTS = (1, 2, 3, 4, 6, 8, 16, 24, 40, 48, 64, 96, 128, 256, 512, 1000, 1024, 1152, 4096, 16_384)
BATCHES = (1, 3, 5, 7, 24, 64, 96, 105, 192, 480, 640, 1000, 1680, 2048, 15_360)
HOST_BYTES = (64 * 2**30, 512 * 2**30, 2**41)
DRIVE_RATES = (1e9, 2e10)
LENGTHS = (512, 1024, 4096, 8192, 12288, 32768, 131072)
STACKS = tuple(stack_names())
MODELS = tuple(entry.id for entry in catalogue().models)


@functools.cache
def described(name: str) -> ModelSpec:
    return describe_config(catalogue().model(name).config, name=name)


@st.composite
def questions(draw: st.DrawFn, framework: str | None = None) -> TrainingQuestion:
    """A job of any model of the catalogue that a stack can run, everything free."""
    stack = framework or draw(st.sampled_from(STACKS))
    method = draw(st.sampled_from(("full", "full", "lora", "qlora")))
    count = draw(st.sampled_from(COUNTS))
    asked = TrainingQuestion(
        model=described(draw(st.sampled_from(MODELS))),
        hardware=Hardware(
            gpu=catalogue().gpu(draw(st.sampled_from(GPUS))),
            gpus=GpuCount(minimum=count, maximum=count),
            gpus_per_node=8,
            host_memory_bytes=draw(st.sampled_from((None, None, *HOST_BYTES))),
            nvme_bytes_per_second=draw(st.sampled_from((None, None, *DRIVE_RATES))),
        ),
        sequence_length=draw(st.sampled_from(LENGTHS)),
        global_batch_size=draw(st.sampled_from((count, 3 * count, 5 * count, 7 * count, *BATCHES))),
        method=method if stack == "any" or method in load_profile(stack).can.methods else "full",
        optimizer=draw(st.sampled_from(("adamw", "adamw", "adamw", "sgd-momentum", "adamw-8bit"))),
        precision=draw(st.sampled_from(("bf16-mixed", "bf16-mixed", "bf16", "fp8-mixed"))),
        attention=draw(st.sampled_from(("flash", "flash", "flash", "eager"))),
        lora=Lora(target_modules=("all-linear",)),
        objective=draw(st.sampled_from(("throughput", "throughput", "cost"))),
        framework=stack,
    )
    try:
        check_question(asked)
    except PlimsollError:
        assume(False)
    assume(stack == "any" or not problems(asked, load_profile(stack)))
    return asked


def meshes(asked: TrainingQuestion, profile: Profile) -> list[tuple[int, int, int, int]]:
    """Return every (data, tensor, pipeline, context) that a stack may divide the GPUs by, and the batch with them."""
    can, model, gpus = profile.can, asked.model, asked.hardware.gpus.minimum
    heads = gcd(model.attention_heads, model.key_value_heads) or gpus
    tensors = divisors(gcd(gpus, heads)) if can.tensor_parallel else [1]
    stages = [each for each in divisors(gpus) if each <= model.num_layers] if can.pipeline_parallel else [1]
    contexts = divisors(gcd(gpus, asked.sequence_length // 2)) if can.context_parallel else [1]
    return [
        (gpus // (tensor * pipeline * context), tensor, pipeline, context)
        for tensor in tensors
        for pipeline in stages
        for context in contexts
        if gpus % (tensor * pipeline * context) == 0
        and asked.global_batch_size % (gpus // (tensor * pipeline * context)) == 0
    ]


def fixed(draw: st.DrawFn, asked: TrainingQuestion, stack: str) -> TrainingQuestion:
    """The same job with a layout that a stack may run; some of it may be left free."""
    profile = load_profile(stack)
    can, model = profile.can, asked.model
    possible = meshes(asked, profile)
    assume(possible)
    data, tensor, pipeline, context = draw(st.sampled_from(possible))
    layers = max(model.num_layers // pipeline, 1)
    micro_batch = draw(st.sampled_from(divisors(asked.global_batch_size // data)))
    is_in_rounds = asked.global_batch_size // (data * micro_batch) % pipeline == 0
    chunks = divisors(layers) if can.virtual_pipeline and pipeline > 1 and is_in_rounds else [1]
    stage = draw(st.sampled_from(can.zero_stages))
    twice = can.secondary_shard_group and stage == HIGHEST_ZERO_STAGE
    degrees = {
        "data_parallel": data,
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "context_parallel": context,
        "virtual_pipeline": draw(st.sampled_from(chunks)),
        "expert_parallel": draw(st.sampled_from((1, 2, 4, 8, 16, 64)))
        if model.experts_per_token and can.expert_parallel
        else 1,
        "zero_stage": stage,
        "shard_group": draw(st.sampled_from(divisors(data))) if can.shard_group and stage else None,
        "sequence_parallel": draw(st.sampled_from(can.sequence_parallel)) if tensor > 1 else None,
        "offload": draw(st.sampled_from(can.offload)),
        "secondary_shard_group": draw(st.sampled_from(_secondary_groups(data))) if twice else None,
        "context_all_to_all": draw(st.sampled_from(divisors(context))) if can.context_all_to_all else None,
    }
    if asked.hardware.nvme_bytes_per_second is not None and degrees["offload"] != "none":
        degrees["offload_target"] = draw(st.sampled_from(can.offload_targets))
    modes = [mode for mode in can.recompute if mode not in ("every", "modules")]
    mode = draw(st.sampled_from(modes))
    partly = Recompute(mode="full", full_layers=draw(st.integers(1, layers)))
    choices = {
        "micro_batch_size": micro_batch,
        "recompute": partly if mode == "full_layers" else Recompute(mode=mode),
        "fused_cross_entropy": can.fused_cross_entropy and draw(st.booleans()),
        "activation_offload": can.activation_offload != "none" and draw(st.booleans()),
    }
    left_free = draw(st.sets(st.sampled_from(sorted(degrees | choices)), max_size=6))
    return replace(
        asked,
        framework=stack,
        layout=LayoutRequest(**{name: value for name, value in degrees.items() if name not in left_free}),  # type: ignore[arg-type]
        **{name: value for name, value in choices.items() if name not in left_free},  # type: ignore[arg-type]
    )


def _secondary_groups(replicas: int) -> list[int]:
    """Return the groups that a search tries: parts of a node of eight that replicas fill."""
    return [group for group in (1, 2, 4, 8) if group < replicas and replicas % group == 0] or [1]


def on(asked: TrainingQuestion, least: int, most: int, *, is_free: bool = False) -> TrainingQuestion:
    """The same job on a range of GPUs."""
    count = GpuCount(minimum=least, maximum=most, is_free=is_free)
    return replace(asked, hardware=replace(asked.hardware, gpus=count))

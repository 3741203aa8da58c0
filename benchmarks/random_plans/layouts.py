"""Layouts and jobs drawn at random, of what a stack's own table says that it can do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any

from benchmarks.random_plans.models import Wanted, drawn_config
from benchmarks.random_plans.themes import Theme
from plimsoll.planners.families import traits
from plimsoll.planners.jobs.pipeline_layouts import EVEN
from plimsoll.planners.stacks.profile import Profile, load_profile
from plimsoll.planners.stacks.records import Capabilities
from plimsoll.service.worker.jobs.job import FP8_MIXED
from plimsoll.service.worker.stacks.found import find_stack, traced_stacks

GPU = "h200-sxm-141gb"
TENSOR_DEGREES = (2, 2, 3, 4, 4, 5, 6, 7, 8, 12)
PIPELINE_DEGREES = (2, 2, 3, 3, 4, 5, 6, 7, 12)
CONTEXT_DEGREES = (2, 2, 3, 4, 5, 6)
EXPERT_DEGREES = (2, 3, 4, 5, 6, 7, 8, 12)
REPLICAS = (1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 8, 12, 16, 24, 40)
GROUPED_REPLICAS = (4, 6, 6, 8, 9, 10, 12, 12, 15, 16, 24, 30)
MICRO_BATCH_SIZES = (1, 1, 1, 2, 2, 3, 4, 5, 6, 7)
DEPTHS = (3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 9, 11, 11)
MOST_LAYERS = 12
MOST_ACCUMULATION_STEPS = 6
SHORTEST, SHORT, LONGEST = 100, 600, 16_384
# torchtune has builders of a few families, and no mixed precision: it would refuse most of what is drawn.
NOT_DRAWN = frozenset({"torchtune"})


def drawn_request(random: Random, theme: Theme) -> dict[str, Any]:
    """Return the body of `POST /plan/train` for a job whose layout is fixed in every degree; rules may forbid it."""
    profile = _drawn_stack(random, theme)
    kernels = theme.kernels or _kernels(random, profile)
    can = load_profile(profile.name, kernels).can
    degrees = _degrees(random, theme, profile)
    layers = _layers(random, degrees, is_even=can.pipeline_layouts[0] == EVEN)
    config = drawn_config(random, _wanted(theme, profile, degrees, layers))
    layout = degrees | _sharding(random, theme, can, degrees)
    micro_batch = random.choice(MICRO_BATCH_SIZES)
    batch = degrees["data_parallel"] * micro_batch * _accumulation(random, theme, degrees)
    training = _training(random, theme, profile, is_mixture=traits(config["model_type"]).has_experts) | {
        "kernels": kernels,
        # No trace of a mask over a split sequence gets to its end yet.
        "attention": "eager" if random.random() < 0.12 and not layout["sequence_parallel"] else "flash",
        "sequence_length": _length(random, theme, config, layout),
        "micro_batch_size": micro_batch,
        "global_batch_size": batch,
        "recompute": _recompute(random, can, layers // degrees["pipeline_parallel"]),
        "fused_cross_entropy": bool(can.fused_cross_entropy and random.random() < 0.35),
    }
    gpus = math.prod(degrees[f"{axis}_parallel"] for axis in ("data", "tensor", "pipeline", "context"))
    if True in profile.overlap.expert_parallel:
        # No trace runs the passes of two micro-batches side by side.
        layout["overlap"] = {"expert_parallel": False}
    return {
        "model": {"config": config},
        "hardware": {"gpu": GPU, "gpus": gpus},
        "training": training,
        "layout": layout,
        "framework": profile.name,
    }


def _wanted(theme: Theme, profile: Profile, degrees: Mapping[str, int], layers: int) -> Wanted:
    is_piped = degrees["pipeline_parallel"] > 1
    return Wanted(
        layers=layers,
        tensor_parallel=degrees["tensor_parallel"],
        is_divided=degrees["tensor_parallel"] > 1 or find_stack(profile.name).has_fused_kernels,
        is_tied=True if theme.tied else (False if is_piped else None),
        is_mixture=True if degrees["expert_parallel"] > 1 else None,
    )


def drawn_stacks() -> list[str]:
    """Return the names of the stacks that plans are drawn of, in order."""
    return [stack.name for stack in traced_stacks() if stack.name not in NOT_DRAWN]


def _drawn_stack(random: Random, theme: Theme) -> Profile:
    """Return a stack that is able; the textbook, which nobody runs, half as often as others."""
    able = [profile for profile in map(load_profile, drawn_stacks()) if theme.suits(profile)]
    return random.choices(able, [1 if profile.is_textbook else 2 for profile in able])[0]


def _kernels(random: Random, profile: Profile) -> str | None:
    return random.choices((None, *profile.kernel_choices), [4, *(1 for _ in profile.kernel_choices)])[0]


def _degrees(random: Random, theme: Theme, profile: Profile) -> dict[str, int]:
    can = profile.can

    def degree(ability: str, is_sure: bool, chance: float, choices: tuple[int, ...]) -> int:
        is_drawn = is_sure or random.random() < chance
        return random.choice(choices) if getattr(can, ability) and is_drawn else 1

    tensor = degree("tensor_parallel", theme.tensor, 0.25, TENSOR_DEGREES)
    pipeline = degree("pipeline_parallel", theme.pipeline, 0.0 if theme.tied else 0.15, PIPELINE_DEGREES)
    virtual = degree("virtual_pipeline", theme.interleaved, 0.1, (2, 2, 3)) if pipeline > 1 else 1
    context = degree("context_parallel", theme.context, 0.06, CONTEXT_DEGREES)
    experts = degree("expert_parallel", theme.experts, 0.06, EXPERT_DEGREES)
    replicas = random.choice(GROUPED_REPLICAS if theme.grouped else REPLICAS)
    if experts > 1:
        replicas = experts // math.gcd(experts, context * tensor) * random.choice((1, 1, 2, 3))
    return {
        "data_parallel": replicas,
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "virtual_pipeline": virtual if pipeline * virtual <= MOST_LAYERS else 1,
        "context_parallel": context,
        "expert_parallel": experts,
    }


def _layers(random: Random, degrees: Mapping[str, int], *, is_even: bool) -> int:
    """Return a number of layers that every chunk of a pipeline gets one of, and each as many where they must."""
    chunks = degrees["pipeline_parallel"] * degrees["virtual_pipeline"]
    if chunks == 1:
        return random.choice(DEPTHS)
    if is_even:
        return chunks * random.randint(1, max(MOST_LAYERS // chunks, 1))
    return random.randint(chunks, max(MOST_LAYERS, chunks))


def _training(random: Random, theme: Theme, profile: Profile, *, is_mixture: bool) -> dict[str, Any]:
    """Return what of the job is drawn whatever its sizes are."""
    can = profile.can
    adapters = [method for method in can.methods if method != "full"]
    method = theme.method or (random.choice(adapters) if adapters and random.random() < 0.1 else "full")
    # Products in fp8 are not traced in mixtures.
    precisions = [name for name in profile.states if not is_mixture or name != FP8_MIXED]
    others = [name for name in can.optimizers if name != "adamw"]
    training: dict[str, Any] = {
        "method": method,
        "precision": theme.precision or (random.choice(precisions) if random.random() < 0.3 else "bf16-mixed"),
        "optimizer": random.choice(others) if others and random.random() < 0.35 else "adamw",
        "activation_offload": can.activation_offload != "none" and (theme.moves_activations or random.random() < 0.1),
    }
    if method != "full":
        targets = (["q_proj", "v_proj"], ["q_proj", "k_proj", "v_proj", "o_proj"], "all-linear")
        training["lora"] = {"rank": random.choice((3, 8, 16, 17, 64)), "target_modules": random.choice(targets)}
        training["lora"]["double_quantization"] = random.random() < 0.5
    return training


def _sharding(random: Random, theme: Theme, can: Capabilities, degrees: Mapping[str, int]) -> dict[str, Any]:
    """Return ZeRO stage, shard group, split sequences, schedule, and what lies on the host."""
    replicas = degrees["data_parallel"]
    stage = theme.zero_stage if theme.zero_stage in can.zero_stages else random.choice(can.zero_stages)
    groups = [group for group in range(2, replicas) if replicas % group == 0]
    is_grouped = can.shard_group and stage > 0 and groups and (theme.grouped or random.random() < 0.25)
    return {
        "zero_stage": stage,
        "shard_group": random.choice(groups) if is_grouped else None,
        "sequence_parallel": degrees["tensor_parallel"] > 1 and random.choice(can.sequence_parallel),
        "pipeline_schedule": theme.schedule if degrees["pipeline_parallel"] > 1 else None,
        "offload": theme.offload or (random.choice(can.offload) if random.random() < 0.06 else "none"),
    }


def _accumulation(random: Random, theme: Theme, degrees: Mapping[str, int]) -> int:
    stages = degrees["pipeline_parallel"]
    if degrees["virtual_pipeline"] > 1:
        return stages * random.choice((1, 1, 2))
    if stages > 1:
        return random.choice((random.randint(1, MOST_ACCUMULATION_STEPS), stages, stages + 1, 2 * stages))
    return random.randint(2 if theme.accumulates else 1, MOST_ACCUMULATION_STEPS)


def _length(random: Random, theme: Theme, config: Mapping[str, Any], layout: Mapping[str, Any]) -> int:
    """Return a length between the shortest and the longest, each order of magnitude as often, that ranks can divide."""
    most = SHORT if theme.short else LONGEST
    positions = config.get("max_position_embeddings") or config.get("n_positions") or most
    drawn = round(math.exp(random.uniform(math.log(SHORTEST), math.log(min(most, positions)))))
    context = layout["context_parallel"]
    step = 2 * context if context > 1 else 1
    if layout["sequence_parallel"]:
        step = math.lcm(step, context * layout["tensor_parallel"])
    return max(drawn // step, 1) * step


def _recompute(random: Random, can: Capabilities, stage_layers: int) -> Any:
    """Return one of a stack's forms of recomputation; of some layers fewer than a stage has."""
    form = random.choice(("none", "none", *can.recompute))
    if form == "full_layers":
        return {"full_layers": random.randint(1, max(stage_layers - 1, 1))}
    if form == "every":
        return {"every": random.choice((2, 3))}
    if form == "modules":
        return {"modules": sorted(random.sample(("core_attn", "layernorm", "mlp"), random.randint(1, 3)))}
    return form if form in ("none", "selective", "full") else "none"

"""Training stacks as the planner sees them: what each keeps in memory, how it shards and what it can do.

The constant "bytes a parameter" is a property of (stack, precision, optimizer)
and not of the model; 8, 10, 16, 18 and 20 are all right somewhere. Each stack's numbers are in the `stack.toml` of its
folder, with their sources; what a folder leaves out it inherits (`folders.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.formats.precision import PRECISIONS
from plimsoll.planners.ground.data_files import overlaid, record
from plimsoll.planners.ground.errors import UnknownName
from plimsoll.planners.ground.terms import ZERO_STAGES
from plimsoll.planners.sharding import ExpertTensorDegree, KeyValueHeads, ShardingPolicy, sharding_policy
from plimsoll.planners.sharding.cuts import cut_of_kind
from plimsoll.planners.stacks.folders import STACK, shipped
from plimsoll.planners.stacks.records import (
    AllocatedBand,
    Capabilities,
    ErrorBand,
    Fp8Storage,
    FrozenBase,
    HostTraffic,
    Kernels,
    LossPath,
    ModelCode,
    OutsideStep,
    Overlaps,
    Placement,
    RunAhead,
    RuntimeBytes,
    ShardingRules,
    StateBytes,
    UpdateRules,
    WeightTraffic,
    ZeroBuckets,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One training stack's memory behaviour and abilities, with its sources.

    `listed` is its place where stacks are offered, `aliases` are what people call it besides. `versions` are the
    releases that its facts were read from, by program. `is_textbook` marks the sums of papers, which no program runs
    and which count no tensors at work in the backward pass. `kernel_choices` are the ways of running the model's
    operations that the file tells apart, `own_optimizers` those with which a job runs otherwise than the rest of the
    file says. `fp8` is None where products in fp8 cast what they need and keep 16
    bits, `run_ahead` where it was not looked for, `zero` where no engine reduces in buckets of its own.
    `sums_wider_gradients_apart` marks a stack that adds gradients up in a copy of their own where they are wider than
    the model's. `unties_head` marks a
    stack that gives every model a head of its own; `loads_whole_weights` one that puts all weights on every GPU before
    it shards them. `optimizer_transient_copies` counts the copies of the stored
    parameters that the optimizer's step makes (torch's foreach: one). `widens_embedding_states` marks a stack that
    keeps the embedding's states in fp32 where the others have eight bits, `updates_matrices_alone` one whose Muon takes
    no experts that are one tensor.
    """

    name: str
    title: str
    listed: int
    aliases: tuple[str, ...]
    measured: bool
    sources: tuple[str, ...]
    versions: Mapping[str, str]
    is_textbook: bool
    states: Mapping[str, StateBytes]
    sharding: ShardingRules
    update: UpdateRules
    placement: Placement
    kernels: Kernels
    fp8: Fp8Storage | None = None
    run_ahead: RunAhead | None = None
    zero: ZeroBuckets | None = None
    loss: LossPath
    weights: WeightTraffic
    host: HostTraffic
    outside_step: OutsideStep
    frozen_base: FrozenBase
    models: ModelCode
    can: Capabilities
    overlap: Overlaps
    band: ErrorBand
    allocated_band: AllocatedBand
    runtime: RuntimeBytes
    optimizer_transient_copies: int
    sums_wider_gradients_apart: bool
    widens_embedding_states: bool
    updates_matrices_alone: bool
    exact_quantization: bool
    kernel_choices: tuple[str, ...]
    own_optimizers: tuple[str, ...]
    unties_head: bool
    loads_whole_weights: bool

    def sharding_policy(self, zero_stage: int) -> ShardingPolicy:
        """Return the policy by which the stack places weights in a ZeRO stage."""
        return self.placement.policies[zero_stage]


USUAL_PRECISIONS = ("bf16-mixed", "bf16")


@functools.cache
def stack_names() -> tuple[str, ...]:
    """Return the names of the training stacks that are planned, sorted."""
    return shipped().names()


@functools.cache
def load_profile(name: str, kernels: str | None = None, optimizer: str | None = None) -> Profile:
    """Return a stack's profile, changed as its file's table `variants` says for the kernels.

    So does the table `optimizers` for an optimizer that it names. Raises `UnknownName` for a stack that nobody knows.
    """
    if name not in stack_names():
        raise UnknownName(name, ("any", *stack_names()), pointer="/framework")
    table = shipped().table(name, STACK)
    if kernels is not None:
        table = overlaid(table, table["variants"][kernels])
    return profile_of(name, overlaid(table, table.get("optimizers", {}).get(optimizer, {})))


def usual_precision(framework: str) -> str:
    """Return the precision of jobs that name none: mixed, or pure 16 bits on a stack that has no mixed one."""
    states = tuple(load_profile(framework).states) if framework in stack_names() else USUAL_PRECISIONS
    return next(precision for precision in (*USUAL_PRECISIONS, *states) if precision in states)


def running_profile(profile: Profile, kernels: str | None, optimizer: str) -> Profile:
    """Return a stack's profile as it runs a job with such kernels and optimizer; itself where neither differs."""
    own = optimizer if optimizer in profile.own_optimizers else None
    return profile if kernels is None and own is None else load_profile(profile.name, kernels, own)


def profiles_to_search(framework: str) -> tuple[Profile, ...]:
    """Return the named profile, or for `any` every stack but the textbook, those that were measured first."""
    if framework != "any":
        return (load_profile(framework),)
    stacks = (load_profile(name) for name in stack_names())
    return tuple(sorted((each for each in stacks if not each.is_textbook), key=lambda profile: not profile.measured))


def textbook() -> Profile:
    """Return the profile of the textbook's sums."""
    return next(profile for profile in map(load_profile, stack_names()) if profile.is_textbook)


def profile_of(name: str, table: Mapping[str, Any]) -> Profile:
    """Return the profile that a merged table says.

    A key that is missing, unknown or of another kind raises, and so does a ZeRO stage that the stack can do where
    nothing says how weights are cut and gathered in it.
    """
    for part, key in (("placement", "cuts"), ("weights", "gathering")):
        _check_stages(f"{name}, {part}.{key}", table[part].get(key, {}), table["can"]["zero_stages"])
    unknown = set(table["states"]) - set(PRECISIONS)
    if unknown:
        raise ValueError(f"{name}, states: {', '.join(sorted(unknown))} is no precision.")
    said = {key: value for key, value in table.items() if key not in ("variants", "optimizers")}
    made = {
        "name": name,
        "kernel_choices": list(table.get("variants", {})),
        "own_optimizers": list(table.get("optimizers", {})),
        "placement": _placement(table["placement"]),
    }
    return record(Profile, {**said, **made})


def _check_stages(key: str, stated: Mapping[str, Any], able: list[int]) -> None:
    """Raise where a table by ZeRO stage says nothing of one that the stack can do, or something of one that is none."""
    stages = set(map(str, ZERO_STAGES))
    unstated, unknown = set(map(str, able)) - set(stated), {*stated, *map(str, able)} - stages
    if unknown:
        raise ValueError(f"{key}: {', '.join(sorted(unknown))} is no ZeRO stage.")
    if unstated:
        raise ValueError(f"{key}: ZeRO stage {', '.join(sorted(unstated))} is not stated.")


def _placement(table: Mapping[str, Any]) -> Placement:
    fields_of_all = dict(table)
    source, stated = fields_of_all.pop("source"), fields_of_all.pop("cuts")
    named = {int(stage): {"kind": cut} if isinstance(cut, str) else cut for stage, cut in stated.items()}
    cuts = {stage: cut_of_kind(**cut) for stage, cut in named.items()}
    nearest = [max((stage for stage in cuts if stage <= wanted), default=min(cuts)) for wanted in ZERO_STAGES]
    fields_of_all |= {
        "key_value_heads": KeyValueHeads(table["key_value_heads"]),
        "expert_tensor_degree": ExpertTensorDegree(table["expert_tensor_degree"]),
    }
    return Placement(
        policies=tuple(sharding_policy(**fields_of_all, cut=cuts[stage]) for stage in nearest), source=source
    )

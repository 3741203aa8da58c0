"""Framework profiles: what a training stack keeps in memory, read from data files.

The constant "bytes a parameter" is a property of (stack, precision, optimizer)
and not of the model; 8, 10, 16, 18 and 20 are all right somewhere. A profile is
the `stack.toml` of a stack's folder, with its sources.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, TypeVar

from plimsoll.planners.ground.errors import UnknownName

T = TypeVar("T")

# The profile of the textbook's sums, which no program runs.
TEXTBOOK = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes a trainable parameter costs at rest in one precision.

    `accumulator` is a second, wider gradient; `master` the optimizer's fp32 copy;
    `moment` one moment of the optimizer.
    """

    parameter: int
    gradient: int
    accumulator: int
    master: int
    moment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingRules:
    """From which ZeRO stage each state is divided; how, is the stack's policy (`planners/sharding`).

    `gradient_zero_stages` are the stages in which whole gradients exist at all.
    """

    parameters_from: int
    gradients_from: int
    accumulators_from: int
    optimizer_from: int
    gradient_zero_stages: tuple[int, ...]
    over_context: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What each kind of operation keeps for the backward pass.

    `norm_keeps_fp32` marks a norm written in separate operations that upcasts;
    `gated_keeps_gate_output` a SwiGLU in two operations. Attention bytes are for
    each head and pair of positions (`eager`) or each head and token (`flash`).
    `keeps_gathered_inputs` marks stacks that, under sequence parallelism, keep the
    gathered input of a column-parallel matrix instead of gathering it again.
    `packed_query_keeps_all` marks a query that is a view of one buffer with keys
    and values, so that keeping it keeps copies of them too. Under sequence
    parallelism `gathered_workspace_bytes` live for each token and hidden feature,
    undivided: the gathered input and the output before it is scattered.
    `four_bit_input_bytes` are kept of each input feature of a frozen matrix in four
    bits, for each token (0: only the matrix itself is kept).
    `adapter_dropout_bytes` are kept of each input feature of an adapter whose input passes a dropout first: its
    output and its mask (0: adapters share the input of their matrix).
    `combine_keeps_expert_outputs` marks experts whose outputs are weighted after
    the last matrix, which the router's gradient needs (Megatron weights before it).
    `dummy_weight_gradients` marks kernels that add weight gradients up where they
    accumulate and hand autograd an empty tensor instead, kept for each matrix of a layer.
    `experts_in_turn` marks stacks that run one expert after the other, so that
    only one expert's gradients meet in the backward pass.
    `transformers_attention` marks transformers' own attention code, whose tensors are views of a
    fused product, and copies where a rotation concatenates.
    `pipelines_keep_messages` marks pipelines that have a buffer for each micro-batch that a stage receives and for
    the gradient of each that it sends, for good, and hold what was sent until its backward pass.
    `works_in_place` marks kernels that write the gradients of norms and gated activations over what these kept or
    were given, and rotate queries and keys where they lie (Liger).
    `fp8_cast_bytes` are of each element of a tensor at the worst moment of its cast to fp8, where products cast what
    they kept in 16 bits (0: they keep fp8).
    `fuses_scan_output` marks stacks that hand Mamba-2's norm and output projection to its kernel.
    Dropout masks belong to ungated layers: families with gated ones train without.
    """

    norm_keeps_fp32: bool
    norm_statistic_bytes: int
    gated_keeps_gate_output: bool
    keeps_gathered_inputs: bool
    eager_score_bytes: int
    eager_score_dropout_bytes: int
    flash_statistic_bytes: int
    dropout_mask_bytes: int
    backward_transients: bool
    packed_query_keeps_all: bool
    gathered_workspace_bytes: int
    four_bit_input_bytes: int
    adapter_dropout_bytes: int
    combine_keeps_expert_outputs: bool
    dummy_weight_gradients: bool
    experts_in_turn: bool
    fuses_scan_output: bool
    transformers_attention: bool
    pipelines_keep_messages: bool
    works_in_place: bool
    fp8_cast_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Storage:
    """What matrix products in fp8 keep: bytes for each element of an input, and of a weight beside the weight itself.

    An input in fp8 is a tensor of its own, beside whatever other operations keep of it in 16 bits.
    """

    input_bytes: int
    weight_copy_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAhead:
    """What tensor parallelism's buffers hold for a host that runs ahead of the device (`planners/memory/run_ahead.py`).

    `layer_bytes` are of each token and hidden feature of a layer. From `below_gpus` GPUs and
    `below_tensor_ranks` tensor-parallel ranks on the host was seen to wait, and nothing is held.
    """

    layer_bytes: int
    below_gpus: int
    below_tensor_ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroTraffic:
    """What DeepSpeed's own engine is told beside its buckets (`planners/memory/zero.py`).

    `max_live_elements` are gathered at most before it waits for some to be let go of.
    """

    max_live_elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPath:
    """How logits and loss are held: bytes for each token and vocabulary entry at the worst moment.

    `forward_logits_bytes` are those at the end of the forward pass, while autocast still
    keeps the casts of all weights. `divided_logits_bytes` take their place where tensor parallelism divides the
    vocabulary. `kept_logits_bytes` are those of the micro-batch before, where the stack lets
    go of them only after the next forward pass. `pipelines_keep_output` marks a stack whose pipelines hold the logits
    themselves until their backward pass is done. Of a loss that is fused with the head `fused_chunk_bytes` are of each
    token and vocabulary entry of a chunk.
    """

    logits_bytes: int
    forward_logits_bytes: int
    divided_logits_bytes: int
    kept_logits_bytes: int
    pipelines_keep_output: bool
    inside_model: bool
    vocabulary_parallel: bool
    fused_chunk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTraffic:
    """What the weights need beside their shards while the step runs.

    `policy` by ZeRO stage: `resident` (used as they lie), `autocast_copies`
    (compute copies live from forward to backward), `gathered_by_layer` (FSDP's
    full sharding, with one layer prefetched), `gathered_to_limit`
    (as many as `ZeroTraffic` says) or `gathered_once` (gathered in the
    forward pass and kept until the backward). `gather_budget_elements` and
    `bucket_elements` are fixed buffers, and `reduce_bytes` the width in which
    gradients of one layer are reduced (0: reduced where they lie).
    `pipelines_gather_once` marks a stack that under pipeline parallelism gathers a
    stage's weights once a step and sums whole gradients in the reduction's width
    until the last micro-batch. `offloaded_gradient_stages`: the ZeRO stages in which gradients follow an offloaded
    optimizer to the host, as soon as they are reduced. `frozen_layers_hold_inputs` marks gathered layers with frozen
    weights whose hooks hold the recomputed input and its gradient to the end of the backward pass.
    `gather_copies` marks weights that are gathered into one buffer and copied out of it (FSDP2; FSDP1's are views
    of it). `whole_embedding_gradient`: the gradient of an embedding that tensor parallelism splits is made whole.
    `vocabulary_units` gives the embedding, and the last norm with an untied head, gathers
    and reductions of their own.
    """

    policy: Mapping[str, str]
    gather_budget_elements: int
    bucket_elements: int
    bucket_zero_stages: tuple[int, ...]
    bucket_copy_of_gradients: bool
    reduce_bytes: int
    gradients_always_resident: bool
    pipelines_gather_once: bool
    offloaded_gradient_stages: tuple[int, ...]
    frozen_layers_hold_inputs: bool
    vocabulary_units: bool
    gather_copies: bool
    whole_embedding_gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCode:
    """Traits of models (`planners/stacks/model_code.py`) that a stack's own code cannot run, or may not."""

    lacks: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the framework can do; the search stays inside it.

    `activation_offload` is `none`, `synchronous`, `overlapped` or `overlapped_once`
    (`planners/memory/activation_offload.py`).
    `experts_over_tensor` marks stacks whose expert-parallel ranks may be tensor-parallel ones
    too, `expert_zero_stages` the stages in which experts can be divided at all.
    `stage_rule` is `by_layers` or `by_compute` (`planners/layouts/stages.py`).
    """

    methods: tuple[str, ...]
    zero_stages: tuple[int, ...]
    tensor_parallel: bool
    pipeline_parallel: bool
    virtual_pipeline: bool
    pipeline_schedules: tuple[str, ...]
    context_parallel: bool
    expert_parallel: bool
    experts_over_tensor: bool
    expert_zero_stages: tuple[int, ...]
    sequence_parallel: tuple[bool, ...]
    even_stages: bool
    stage_rule: str
    shard_group: bool
    offload: tuple[str, ...]
    offload_targets: tuple[str, ...]
    activation_offload: str
    recompute: tuple[str, ...]
    selective_policy: str
    fused_cross_entropy: bool
    gradient_compression: tuple[str, ...]
    optimizers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenBase:
    """Whether weights that do not learn are held in fp32 under mixed precision, or in its 16 bits, and why."""

    is_fp32: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideStep:
    """How a stack loads weights (`every_rank`, `one_a_node`, `own_shards`) and writes checkpoints.

    A checkpoint is `sharded`, `gathered` on rank 0 or `staged` in host memory (`planners/memory/outside_step.py`).
    """

    loading: str
    checkpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBand:
    """How far the true peak may lie from the estimate, as multiples, and why."""

    low: float
    high: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeBytes:
    """What a process holds outside the allocator, and the allocator's own surplus: a multiple, and bytes besides.

    `world_communicators` of all ranks stand beside those of the mesh axes.
    """

    context_bytes: int
    nccl_pair_bytes: int
    nccl_group_bytes: int
    world_communicators: int
    workspace_bytes: int
    reserved_over_allocated: float
    reserved_slack_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One framework's memory behaviour and abilities, with its sources.

    `kernel_choices` are the ways of running the model's operations that the file
    tells apart. `fp8` is None where products in fp8 cast what they need and keep 16
    bits, `run_ahead` where it was not looked for, `zero` where no engine of DeepSpeed's runs. `unties_head` marks a
    stack that gives every model a head of its own; `loads_whole_weights` one that puts all weights on every GPU before
    it shards them. `optimizer_transient_copies` counts the copies of the stored
    parameters that the optimizer's step makes (torch's foreach: one). `widens_embedding_states` marks a stack that
    keeps the embedding's states in fp32 where the others have eight bits.
    """

    name: str
    title: str
    measured: bool
    sources: tuple[str, ...]
    states: Mapping[str, StateBytes]
    sharding: ShardingRules
    kernels: Kernels
    fp8: Fp8Storage | None
    run_ahead: RunAhead | None
    zero: ZeroTraffic | None
    loss: LossPath
    weights: WeightTraffic
    spikes: OutsideStep
    frozen_base: FrozenBase
    models: ModelCode
    can: Capabilities
    band: ErrorBand
    runtime: RuntimeBytes
    optimizer_transient_copies: int
    widens_embedding_states: bool
    exact_quantization: bool
    kernel_choices: tuple[str, ...]
    unties_head: bool
    loads_whole_weights: bool


@functools.cache
def stack_names() -> tuple[str, ...]:
    """Return the names of the training stacks, sorted: those of the folders beside this file, `-` for `_`."""
    folders = resources.files("plimsoll.planners.stacks").iterdir()
    return tuple(sorted(each.name.replace("_", "-") for each in folders if (each / "stack.toml").is_file()))


def stack_table(name: str, file: str) -> dict[str, Any]:
    """Return what a file of a stack's folder says."""
    folder = resources.files("plimsoll.planners.stacks") / name.replace("-", "_")
    return tomllib.loads((folder / file).read_text(encoding="utf-8"))


@functools.cache
def load_profile(name: str, kernels: str | None = None) -> Profile:
    """Return a framework's profile, changed as its file's table `variants` says for the kernels.

    Raises `UnknownName` for a framework that nobody knows.
    """
    if name not in stack_names():
        raise UnknownName(name, ("any", *stack_names()), pointer="/framework")
    table = stack_table(name, "stack.toml")
    changes = {} if kernels is None else table["variants"][kernels]
    return _profile({**table, **{part: {**table[part], **values} for part, values in changes.items()}})


def profiles_to_search(framework: str) -> tuple[Profile, ...]:
    """Return the named profile, or for `any` every stack but the textbook, those that were measured first."""
    if framework != "any":
        return (load_profile(framework),)
    stacks = (load_profile(name) for name in stack_names() if name != TEXTBOOK)
    return tuple(sorted(stacks, key=lambda profile: not profile.measured))


def _profile(table: Mapping[str, Any]) -> Profile:
    return Profile(
        name=table["name"],
        title=table["title"],
        measured=table["measured"],
        sources=tuple(table["sources"]),
        states={precision: _read(StateBytes, entry) for precision, entry in table["states"].items()},
        sharding=_read(ShardingRules, table["sharding"]),
        kernels=_read(Kernels, table["kernels"]),
        fp8=_read(Fp8Storage, table["fp8"]) if "fp8" in table else None,
        run_ahead=_read(RunAhead, table["run_ahead"]) if "run_ahead" in table else None,
        zero=_read(ZeroTraffic, table["zero"]) if "zero" in table else None,
        loss=_read(LossPath, table["loss"]),
        weights=_read(WeightTraffic, table["weights"]),
        spikes=_read(OutsideStep, table["spikes"]),
        frozen_base=_read(FrozenBase, table["frozen_base"]),
        models=_read(ModelCode, table["models"]),
        can=_read(Capabilities, table["can"]),
        band=_read(ErrorBand, table["band"]),
        runtime=_read(RuntimeBytes, table["runtime"]),
        optimizer_transient_copies=table["optimizer_transient_copies"],
        widens_embedding_states=table["widens_embedding_states"],
        exact_quantization=table["exact_quantization"],
        kernel_choices=tuple(table.get("variants", {})),
        unties_head=table["unties_head"],
        loads_whole_weights=table["loads_whole_weights"],
    )


def _read(kind: type[T], table: Mapping[str, Any]) -> T:
    """Return a value of `kind`; a missing or unknown key raises where the file is wrong."""
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    if known != set(table):
        raise ValueError(f"{kind.__name__}: keys {sorted(known ^ set(table))} are missing or unknown.")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})

"""What is recorded of a training stack, part by part: each is a table of its `stack.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from plimsoll.planners.ground.terms import (
    AttentionKind,
    GradientCompression,
    Method,
    Offload,
    OffloadTarget,
    PipelineSchedule,
    RecomputeMode,
)
from plimsoll.planners.sharding import ShardingPolicy

# How weights are there for a step: used as they lie; cast to the compute format from the forward pass to the backward;
# gathered by layer with one prefetched (FSDP); as many as `ZeroBuckets` says; or once, kept until the backward pass.
Gathering: TypeAlias = Literal["resident", "autocast_copies", "gathered_by_layer", "gathered_to_limit", "gathered_once"]
# How kept activations go to the host: `planners/memory/activation_offload.py`.
ActivationOffload: TypeAlias = Literal["none", "synchronous", "overlapped", "overlapped_once", "by_modules"]
BY_MODULES = "by_modules"
# What selective recomputation throws away: the scores of attention, or all but attention and every second product.
SelectivePolicy: TypeAlias = Literal["none", "attention_scores", "alternate_matmuls"]
# Modes, and three that a question states beside one: so many layers of a stage, every so-manieth, modules by name.
RecomputeForm: TypeAlias = Literal[RecomputeMode, "full_layers", "every", "modules"]
# Who reads a checkpoint, and what is made of states as they are written: `planners/memory/outside_step.py`.
WeightLoading: TypeAlias = Literal["every_rank", "one_a_node", "own_shards"]
CheckpointWriting: TypeAlias = Literal["sharded", "gathered", "staged"]


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
    """From which ZeRO stage each state is divided; how, is its `Placement`.

    `gradient_zero_stages` are the stages in which whole gradients exist at all.
    """

    parameters_from: int
    gradients_from: int
    accumulators_from: int
    optimizer_from: int
    gradient_zero_stages: tuple[int, ...]
    over_context: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRules:
    """What the update makes, above all an optimizer that works on whole matrices (`planners/memory/dealt.py`).

    With `deals_parameters` a divided state is dealt out parameter by parameter, each whole on one rank, gradients are
    all-reduced, and updated parameters are gathered as one list. `joins_projections` marks a stack whose matrices that
    take the same input are one parameter; queries, keys and values are updated apart all the same. While a matrix is
    updated there are `matrix_bytes` of each of its elements beside the states (0: what the optimizer itself makes).
    `widens_gradients` marks an update that copies a rank's part of narrower gradients to fp32 where master weights are,
    unless states have dtypes of their own (Megatron-Core's precision-aware optimizer reads them as they are).
    """

    deals_parameters: bool
    joins_projections: bool
    widens_gradients: bool
    matrix_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which rank holds what of a weight: the policy in each ZeRO stage, from 0 on, and whose code says so.

    A stage that the stack cannot do has the policy of the nearest below it.
    """

    policies: tuple[ShardingPolicy, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What each kind of operation keeps for the backward pass.

    `norm_keeps_fp32` marks a norm written in separate operations that upcasts;
    `gated_keeps_gate_output` a SwiGLU in two operations. Attention bytes are for
    each head and pair of positions (`eager`) or each head and token (`flash`).
    `keeps_gathered_inputs` marks stacks that, under sequence parallelism, keep the
    gathered input of a column-parallel matrix instead of gathering it again, `adapters_keep_gathered_inputs` those
    whose adapters beside such matrices do.
    `packed_query_keeps_all` marks a query that is a view of one buffer with keys
    and values, so that keeping it keeps copies of them too. Under sequence
    parallelism `gathered_workspace_bytes` live for each token and hidden feature,
    undivided: the gathered input and the output before it is scattered.
    `four_bit_input_bytes` are kept of each input feature of a frozen matrix in four
    bits, for each token (0: only the matrix itself is kept).
    `four_bit_unpacking_bytes` are live of each element of such a matrix as it is unpacked (0: it in the compute
    format alone).
    `adapter_dropout_bytes` are kept of each input feature of an adapter whose input passes a dropout first: its
    output and its mask (0: adapters share the input of their matrix). `joins_attention_adapters` marks stacks in which
    queries, keys and values have one adapter.
    `combine_keeps_expert_outputs` marks experts whose outputs are weighted after
    the last matrix, which the router's gradient needs (Megatron weights before it).
    `transformer_engine` marks Megatron-Core with Transformer Engine: weight gradients are added up where they
    accumulate, and autograd is handed an empty tensor instead, kept for each matrix; attention's tensors are sequence
    first (`memory/sequence_first.py`); a recomputed layer's output and its gradient stay to the end of its backward
    pass (tensor_parallel/random.py, `CheckpointFunction`), and so do messages of a pipeline (`programs/resident.py`).
    `experts_in_turn` marks stacks that run one expert after the other, so that
    only one expert's gradients meet in the backward pass.
    `transformers_modules` marks stacks that train transformers' own modules: attention's tensors are views of a
    fused product, and copies where a rotation concatenates; the model holds the embedding's output.
    `pipelines_keep_messages` marks pipelines that have a buffer for each micro-batch that a stage receives and for
    the gradient of each that it sends, for good, and hold what was sent until its backward pass.
    `works_in_place` marks kernels that write the gradients of norms and gated activations over what these kept or
    were given, and rotate queries and keys where they lie (Liger).
    `fp8_cast_bytes` are of each element of a tensor at the worst moment of its cast to fp8, where products cast what
    they kept in 16 bits (0: they keep fp8).
    `fuses_scan_output` marks stacks that hand Mamba-2's norm and output projection to its kernel.
    `norms_scale_in_fp32` marks norms in separate operations that multiply by their scale before they cast down,
    whatever the family. `compiled` marks layers that torch.compile runs: its partitioner saves what some gradient
    needs, and nothing else that recomputation would keep. `repeats_shared_heads` copies keys and values for every query
    head that shares them. `rotary_table_bytes` are of each cosine and sine of a table that is made of all the model's
    positions for good (0: of the sequence's, in the compute format, for the passes); the families of `doubled_tables`
    repeat both for a pair's second feature. Beside adapters every layer has a table of its own, but for the families of
    `one_table_from` with so many positions or more.
    Dropout masks belong to ungated layers: families with gated ones train without.
    """

    norm_keeps_fp32: bool
    norm_statistic_bytes: int
    gated_keeps_gate_output: bool
    keeps_gathered_inputs: bool
    adapters_keep_gathered_inputs: bool
    eager_score_bytes: int
    eager_score_dropout_bytes: int
    flash_statistic_bytes: int
    dropout_mask_bytes: int
    packed_query_keeps_all: bool
    gathered_workspace_bytes: int
    four_bit_input_bytes: int
    four_bit_unpacking_bytes: int
    adapter_dropout_bytes: int
    joins_attention_adapters: bool
    combine_keeps_expert_outputs: bool
    transformer_engine: bool
    experts_in_turn: bool
    fuses_scan_output: bool
    transformers_modules: bool
    pipelines_keep_messages: bool
    works_in_place: bool
    fp8_cast_bytes: int
    norms_scale_in_fp32: bool
    compiled: bool
    repeats_shared_heads: bool
    rotary_table_bytes: int
    doubled_tables: tuple[str, ...]
    one_table_from: Mapping[str, int]

    @property
    def of_head(self) -> Kernels:
        """Return those of the last norm and the head, which a compiler of layers leaves as they are."""
        return replace(self, norm_keeps_fp32=True) if self.compiled else self


@dataclass(frozen=True, slots=True, kw_only=True)
class LowPrecision:
    """What matrix products in 8 or 4 bits keep: bytes for each element of an input, and of a weight in their formats.

    An input is a tensor of its own, beside whatever other operations keep of it in 16 bits. `alone` says whether the
    weight may lie so without a 16-bit tensor, the default first; then it is gathered in `gathered_bytes`.
    """

    input_bytes: float
    weight_copy_bytes: float
    alone: tuple[bool, ...]
    gathered_bytes: float


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
class ZeroBuckets:
    """What an engine with buckets is told of them, in elements (`planners/memory/programs/zero/`).

    `max_live_elements` are gathered at most before it waits for some to be let go of. `whole_mixtures` are the families
    whose mixtures it gathers whole, and reduces as all of their gradients are there.
    """

    reduce_bucket_elements: int
    prefetch_bucket_elements: int
    max_live_elements: int
    whole_mixtures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPath:
    """How logits and loss are held: bytes for each token and vocabulary entry at the worst moment.

    `forward_logits_bytes` are those at the end of the forward pass, while autocast still
    keeps the casts of all weights. `divided_logits_bytes` take their place where tensor parallelism divides the
    vocabulary. `kept_logits_bytes` are those of the micro-batch before, where the stack lets
    go of them only after the next forward pass. `pipelines_keep_output` marks a stack whose pipelines hold the logits
    themselves until their backward pass is done. Of a loss that is fused with the head `fused_chunk_bytes` are of each
    token and vocabulary entry of a chunk. `replicas_return_logits` marks a stack whose whole replicas return the logits
    with the loss, in fp32 under mixed precision, and a clone of them where nothing is recomputed. A loss of
    `sequence_chunks` parts of every sequence (0: of whole ones) casts one part's logits at a time, and the head has a
    gradient of each; then no bytes above are read. Nor are those of a loss that is `compiled`, but where tensor
    parallelism divides the vocabulary: it keeps the logits as the head gave them, with a maximum and a sum of each
    token, and one kernel makes their gradient beside them.
    """

    logits_bytes: int
    forward_logits_bytes: int
    divided_logits_bytes: int
    kept_logits_bytes: int
    pipelines_keep_output: bool
    inside_model: bool
    vocabulary_parallel: bool
    fused_chunk_bytes: int
    replicas_return_logits: bool
    sequence_chunks: int
    compiled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTraffic:
    """What the weights need beside their shards while the step runs.

    `gathering` is by ZeRO stage. `gradient_bucket_stages` are those in which buckets hold
    a second copy of all gradients, and `reduce_bytes` is the width in which
    gradients of one layer are reduced (0: reduced where they lie) in mixed precision; `reduces_alike` marks a stack
    that does so in every other, where those that do not name a width reduce in that of the weights.
    `pipelines_gather_once` marks a stack that under pipeline parallelism gathers a
    stage's weights once a step and sums whole gradients in the reduction's width
    until the last micro-batch. `frozen_layers_hold_inputs` marks gathered layers with frozen
    weights whose hooks hold the recomputed input and its gradient to the end of the backward pass.
    `gather_copies` marks weights that are gathered into one buffer and copied out of it (FSDP2; FSDP1's are views
    of it). `whole_embedding_gradient`: the gradient of an embedding that tensor parallelism splits is made whole.
    `tied_gradients_meet`: the gradients that a tied table has of the embedding and of the head are whole tables, and
    are added up. `vocabulary_units` gives the embedding, and the last norm with an untied head, gathers
    and reductions of their own; with `tied_table_last` a tied table stands behind the norm in the one unit of both.
    `keeps_root` marks a root that stays gathered for a loss outside the model too, as FSDP2's did whatever it was told
    before torch 2.8 (pytorch/pytorch#154704).
    """

    gathering: Mapping[str, Gathering]
    gradient_bucket_stages: tuple[int, ...]
    reduce_bytes: int
    reduces_alike: bool
    gradients_always_resident: bool
    pipelines_gather_once: bool
    frozen_layers_hold_inputs: bool
    vocabulary_units: bool
    tied_table_last: bool
    keeps_root: bool
    gather_copies: bool
    whole_embedding_gradient: bool
    tied_gradients_meet: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTraffic:
    """What goes to the host and comes from it once states lie there.

    `gradient_stages` are the ZeRO stages in which gradients follow an offloaded optimizer as soon as they are reduced;
    with `fp32_gradients` they wait there in fp32, whatever they are added up in. A stack that `copies_parameters` keeps
    copies of both, and the moments, there in fp32, of what is in fp32 on the device too. In `flat_buffer_stages` those
    of the last micro-batch are sent straight into the buffer that the optimizer reads, and updated weights come up from
    a buffer in their own format. `note` is said of plans with states on the host, `nvme_note`
    of those with some on NVMe.
    """

    gradient_stages: tuple[int, ...]
    fp32_gradients: bool
    copies_parameters: bool
    flat_buffer_stages: tuple[int, ...]
    note: str
    nvme_note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCode:
    """Traits of models (`planners/stacks/model_code.py`) that a stack's own code cannot run, or may not.

    `ring_lacks` are those that it cannot run with a ring of context ranks, `exchange_lacks` those that it cannot where
    all context ranks exchange heads, `pipeline_lacks` those whose layers it cuts into no pipeline stages.
    """

    lacks: tuple[str, ...]
    unknown: tuple[str, ...]
    ring_lacks: tuple[str, ...]
    exchange_lacks: tuple[str, ...]
    pipeline_lacks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the framework can do; the search stays inside it.

    `experts_over_tensor` marks stacks whose expert-parallel ranks may be tensor-parallel ones
    too, `expert_zero_stages` the stages in which experts can be divided at all.
    `pipeline_layouts` are forms in which it divides a pipeline's blocks (`planners/jobs/pipeline_layouts.py`), its
    default first; `secondary_shard_group` marks a second copy of stage 3's weights in smaller groups (ZeRO++, hpZ).
    `context_all_to_all` marks ranks of a sequence that exchange heads for tokens (DeepSpeed Ulysses).
    `optimizer_offload_from` and `parameter_offload_from` are the ZeRO
    stages from which these can lie on the host, and with `lone_rank_offload` they can where a rank shares them with no
    other; `undivided_optimizers` are those whose states no ZeRO stage
    divides, `state_dtypes_from` is the one from which gradients and states (those of `chosen_dtypes`) can have
    other dtypes than the stack's own, `replicates` says whether several ranks can hold all states each,
    with `activation_offload_recomputes` activations go to the host only beside recompute of all layers, and
    with `adapters_over_tensor` adapters can be divided over tensor-parallel ranks, and with
    `shares_expert_adapters` all experts of a layer have one adapter, which every rank holds. `attention` is the
    kinds of
    attention it runs, `attention_without_bf16` those on cards below compute capability 8.0, where no bf16 is and
    torch's memory-efficient kernel stands for flash ones. `optimizer_precisions` has the
    precisions of optimizers that do not run in all. `companions` marks stacks that TRL's trainers run on, with models
    beside the one that learns. `fused_loss_of` are the model types whose loss its program fuses, all where it is empty.
    `evaluation_logits_kept_by` is the program that keeps an evaluation's logits, or empty.
    """

    methods: tuple[Method, ...]
    zero_stages: tuple[int, ...]
    tensor_parallel: bool
    adapters_over_tensor: bool
    shares_expert_adapters: bool
    pipeline_parallel: bool
    virtual_pipeline: bool
    pipeline_schedules: tuple[PipelineSchedule, ...]
    context_parallel: bool
    context_all_to_all: bool
    expert_parallel: bool
    experts_over_tensor: bool
    expert_zero_stages: tuple[int, ...]
    sequence_parallel: tuple[bool, ...]
    pipeline_layouts: tuple[str, ...]
    shard_group: bool
    replicates: bool
    chosen_dtypes: tuple[str, ...]
    secondary_shard_group: bool
    offload: tuple[Offload, ...]
    offload_targets: tuple[OffloadTarget, ...]
    optimizer_offload_from: int
    parameter_offload_from: int
    lone_rank_offload: bool
    activation_offload: ActivationOffload
    attention: tuple[AttentionKind, ...]
    attention_without_bf16: tuple[AttentionKind, ...]
    activation_offload_recomputes: bool
    recompute: tuple[RecomputeForm, ...]
    selective_policy: SelectivePolicy
    fused_cross_entropy: bool
    fused_loss_of: tuple[str, ...]
    gradient_compression: tuple[GradientCompression, ...]
    optimizers: tuple[str, ...]
    undivided_optimizers: tuple[str, ...]
    state_dtypes_from: int
    optimizer_precisions: Mapping[str, tuple[str, ...]]
    companions: bool
    multi_token_prediction: bool
    evaluation_logits_kept_by: str

    def fuses_loss_of(self, model_type: str) -> bool:
        """Return whether its program fuses the loss of such models with their head."""
        return self.fused_cross_entropy and (not self.fused_loss_of or model_type in self.fused_loss_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlaps:
    """Whether a stack is told to hide traffic behind computation: the choices that it offers, its default first.

    With one choice a client cannot choose. Where `parameters_with_gradients`, parameters hide only if gradients do.
    `expert_parallel` may be the search's to choose. `tensor_parallel_by_itself` marks a stack whose layers hide some
    tensor-parallel traffic whether told to or not. `tensor_parallel_kernels` are those with which it can be told to,
    empty for all; told to, it takes `tensor_parallel_buffers` as large as a
    micro-batch's residual stream, undivided, `tensor_parallel_fp8_buffers` of them in fp8 where products are, and
    `tensor_parallel_chunk_buffers` as large as a rank's part of that stream. How much is hidden says the stack's
    `timing.toml`.
    """

    gradients: tuple[bool, ...]
    parameters: tuple[bool, ...]
    parameters_with_gradients: bool
    tensor_parallel: tuple[bool, ...]
    tensor_parallel_by_itself: bool
    tensor_parallel_kernels: tuple[str, ...]
    tensor_parallel_buffers: int
    tensor_parallel_fp8_buffers: int
    tensor_parallel_chunk_buffers: int
    expert_parallel: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenBase:
    """Whether weights that do not learn are held in fp32 under mixed precision, or in its 16 bits, and why.

    `quantized_as` names what QLoRA makes of them, in `planners/quantization/stacks.py`.
    """

    is_fp32: bool
    reason: str
    quantized_as: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideStep:
    """How a stack loads weights, and writes checkpoints."""

    loading: WeightLoading
    checkpoint: CheckpointWriting


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBand:
    """How far the true peak may lie from the estimate, as multiples, and why."""

    low: float
    high: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedBand:
    """How far allocated bytes may lie from the estimate, as multiples: nearer than what is reserved for them."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeBytes:
    """What a process holds outside the allocator, and the allocator's own surplus: a multiple, and bytes besides.

    `world_communicators` of all ranks stand beside those of the mesh axes. With `stream_pools` the surplus is of the
    main stream's pool, beside which others stand (`planners/memory/programs/stream_pools.py`). An allocator that runs
    short gives segments back of which nothing is in use; `needed_over_allocated` is what it cannot do without.
    `expandable_over_allocated` is the multiple where segments grow by pages.
    """

    context_bytes: int
    nccl_pair_bytes: int
    nccl_group_bytes: int
    world_communicators: int
    workspace_bytes: int
    reserved_over_allocated: float
    needed_over_allocated: float
    expandable_over_allocated: float
    reserved_slack_bytes: int
    stream_pools: bool

"""What one replica does for a token: bytes read, operations, hidden states exchanged; `pace.py` makes times of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from plimsoll.planners.architecture import Block, ModelSpec, Operation, OperationKind, Region
from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.serving.cache.compressed_rows import index_row_bytes, row_bytes
from plimsoll.planners.serving.cache.kv_formats import layer_bytes_per_token, recurrent_state_bytes
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.settings.settings import Settings
from plimsoll.planners.serving.times.efficiency import Efficiency, efficiency, engine_efficiency
from plimsoll.planners.serving.weights.stages import Stage
from plimsoll.planners.timing.efficiency import network_hop_seconds

# Attention's output and the feed-forward's are each summed over the ranks
# (Shoeybi et al. 2019, arXiv:1909.08053).
ALL_REDUCES_PER_LAYER = 2
# A stage hands over its hidden states and the residual beside them
# (vllm/model_executor/models/llama.py, make_empty_intermediate_tensors).
HANDED_OVER = 2
# Bytes that a row through an expert writes and reads around its two products: for each of the hidden features its
# 8-bit input and its 16-bit output, for each inner one the 16-bit gate and up and their 8-bit product.
HIDDEN_BYTES_PER_TILE_ROW = 2 * (1 + 2)
INNER_BYTES_PER_TILE_ROW = 2 * (2 * 2 + 1)
# A rate for this format tells a Blackwell card: its matrix units are the first of 4 bits.
BLACKWELL_FORMAT = "nvfp4"
EIGHT_BIT_WEIGHTS = "fp8"
# What the experts' last product writes (planners/architecture/mixture_of_experts.py).
EXPERT_OUTPUT = "expert_output"
MOST_KEPT_MODELS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLayers:
    """Layers that read their cache alike: a position's bytes and attention operations over all of them, on one rank.

    A position stands for `tokens_per_position` tokens, and no token looks back on more than `window` of them.
    """

    window: int | None
    bytes_per_token: int
    attention_flops_per_position: float
    state_bytes: int = 0
    tokens_per_position: int = 1

    def read_bytes(self, context_tokens: float) -> float:
        """Return what one token reads of its sequence's cache; a recurrent state is read and written."""
        return self.bytes_per_token * self.attended(context_tokens) + 2 * self.state_bytes

    def attended(self, context_tokens: float) -> float:
        """Return how many positions a token at this context looks back on."""
        positions = context_tokens / self.tokens_per_position
        return min(positions, self.window) if self.window else positions


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaWork:
    """What one replica does for a token, and how fast its GPUs and its engine are. All per rank.

    `operations` are all layers' (`matmuls` of them multiply), each of which takes a kernel's
    start and end however little it does. `tile_bytes` is what kernels move for the rows
    of whole tiles, one for every expert; 0 where rows are taken as they are. `slowest_stage_part`
    is what the pipeline stage with the most weights reads of those of all; `network_seconds` are the starts of
    messages from node to node that a token waits for. The factors
    are what a measured run of the same model, GPU and engine took of the estimate.
    """

    efficiency: Efficiency
    read_bytes: int
    expert_bytes: int
    experts: int
    experts_per_token: int
    layer_flops_per_token: float
    head_flops_per_token: float
    cached: tuple[CachedLayers, ...]
    all_reduce_bytes_per_token: float
    hop_bytes_per_token: float
    layers: int
    operations: int
    matmuls: int
    mixture_layers: int
    tile_bytes: float
    ranks_per_stage: int
    pipeline_parallel: int
    attention_data_parallel: int
    peak_flops_per_second: float
    memory_bytes_per_second: float
    tensor_link_bytes_per_second: float
    stage_link_bytes_per_second: float
    slowest_stage_part: float = 1.0
    network_seconds: float = 0.0
    quantizes_activations: bool = False
    is_blackwell: bool = False
    token_factor: float = 1.0
    first_token_factor: float = 1.0

    def prefill_flops(self, tokens: int) -> float:
        """Return one rank's operations for a prompt; only its last token needs logits."""
        mean_context = (tokens + 1) / 2
        attention = sum(layers.attention_flops_per_position * layers.attended(mean_context) for layers in self.cached)
        return tokens * (self.layer_flops_per_token + attention) + self.head_flops_per_token

    def prefill_compute_seconds(self, tokens: int) -> float:
        """Return a prompt's operations at the peak rate, all stages one after another."""
        return self.prefill_flops(tokens) / self.peak_flops_per_second

    def all_reduce_seconds(self, tokens: float) -> float:
        """Return the time on the wire of all layers' all-reduces at the link's own rate."""
        return tokens * self.all_reduce_bytes_per_token / self.tensor_link_bytes_per_second

    def decode_flops(self, context_tokens: float) -> float:
        """Return one rank's operations for one generated token."""
        attention = sum(layers.attention_flops_per_position * layers.attended(context_tokens) for layers in self.cached)
        return self.layer_flops_per_token + self.head_flops_per_token + attention

    def weight_bytes_read(self, tokens: float) -> float:
        """Return what one rank reads of the weights in a step of `tokens` over all ranks of a stage.

        Each token is sent to `experts_per_token` experts; taken as drawn at random,
        so many tokens touch E (1 - (1 - k/E)^tokens) of E experts.
        """
        return self.read_bytes + self.expert_bytes * self.touched_part(tokens)

    def touched_part(self, tokens: float) -> float:
        """Return the part of the experts that a step's tokens read: all where each has a tile of its own."""
        if not self.expert_bytes:
            return 0.0
        idle: float = self.idle_part**tokens
        return 1.0 if self.tile_bytes else 1 - idle

    def cache_seconds(self, context_tokens: float) -> float:
        """Return the time to read one sequence's cache at the memory's rate."""
        return sum(layers.read_bytes(context_tokens) for layers in self.cached) / self.memory_bytes_per_second

    @property
    def idle_part(self) -> float:
        """Return the part of the experts that one token does not touch."""
        return 1 - self.experts_per_token / self.experts

    def hop_seconds(self, tokens: float) -> float:
        """Return the time tokens take from stage to stage."""
        hops = self.pipeline_parallel - 1
        return hops * tokens * self.hop_bytes_per_token / self.stage_link_bytes_per_second


def replica_work(
    model: ModelSpec, settings: Settings, hardware: Hardware, stages: Sequence[Stage], degrees: Degrees
) -> ReplicaWork:
    """Return a replica's work: weights of all stages, because a token passes them all."""
    gpu, within_node = hardware.gpu, hardware.gpus_per_node
    tensor = degrees.tensor_parallel
    link = gpu.link_bytes_per_second if degrees.ranks_per_stage <= within_node else gpu.nic_bytes_per_second
    stage_link = gpu.link_bytes_per_second if degrees.gpus <= within_node else gpu.nic_bytes_per_second
    hidden_bytes = model.hidden_size * settings.weights.dense_bytes
    stage_bytes = [stage.read_bytes + stage.expert_bytes for stage in stages]
    flops = _token_flops(ByIdentity(model))
    if settings.profile.timed_as is None:
        raise NotYetAvailable(
            f"The speed of {settings.profile.engine} cannot be predicted yet.", pointer="/serving/engine"
        )
    return ReplicaWork(
        efficiency=engine_efficiency(settings.profile.timed_as, hardware.site),
        read_bytes=sum(stage.read_bytes for stage in stages),
        expert_bytes=sum(stage.expert_bytes for stage in stages),
        experts=flops.experts,
        experts_per_token=model.experts_per_token,
        layer_flops_per_token=flops.layers / tensor,
        head_flops_per_token=flops.head / tensor,
        cached=tuple(
            layers for block in model.layers for layers in _cached_layers(block, model.model_type, settings, tensor)
        ),
        all_reduce_bytes_per_token=_exchanged_hidden_states(model, degrees) * hidden_bytes,
        hop_bytes_per_token=HANDED_OVER * hidden_bytes,
        layers=model.num_layers,
        operations=flops.operations,
        matmuls=flops.matmuls,
        mixture_layers=flops.mixture_layers,
        tile_bytes=_tile_bytes(flops, settings, degrees),
        ranks_per_stage=degrees.ranks_per_stage,
        pipeline_parallel=degrees.pipeline_parallel,
        attention_data_parallel=degrees.attention_data_parallel,
        peak_flops_per_second=settings.weights.peak_flops_per_second(gpu),
        memory_bytes_per_second=gpu.memory_bytes_per_second,
        tensor_link_bytes_per_second=link,
        stage_link_bytes_per_second=stage_link,
        slowest_stage_part=max(stage_bytes) / sum(stage_bytes),
        network_seconds=_network_hops(model, degrees, within_node) * network_hop_seconds(),
        quantizes_activations=settings.weights.quantizes_activations(gpu),
        is_blackwell=BLACKWELL_FORMAT in gpu.peak_flops_per_second,
        token_factor=1.0 if settings.learned is None else settings.learned.tpot_factor,
        first_token_factor=1.0 if settings.learned is None else settings.learned.ttft_factor,
    )


def _exchanged_hidden_states(model: ModelSpec, degrees: Degrees) -> float:
    """Return the hidden states that one rank's token sends through all layers.

    A ring all-reduce moves each rank's message twice, less one share each way
    (Patarasuk & Yuan 2009, https://doi.org/10.1016/j.jpdc.2008.09.002); attention's
    output and the feed-forward's are each summed over the ranks (arXiv:1909.08053).
    Ranks of attention data parallelism gather all their tokens before the experts and
    scatter the sums after (vllm/config/parallel.py, all2all_backend
    allgather_reducescatter), a token of each for every one of its own.
    """
    tensor, group = degrees.tensor_parallel, degrees.ranks_per_stage
    ring = 2 * (tensor - 1) / tensor
    mixtures = _token_flops(ByIdentity(model)).mixture_layers
    if degrees.attention_data_parallel == 1:
        return ALL_REDUCES_PER_LAYER * ring * model.num_layers
    gathered = 2 * (group - 1) / group * degrees.attention_data_parallel
    return ring * (ALL_REDUCES_PER_LAYER * model.num_layers - mixtures) + gathered * mixtures


def _network_hops(model: ModelSpec, degrees: Degrees, gpus_per_node: int) -> int:
    """Return how many messages from node to node a token waits for, one after another.

    A ring over n nodes passes each of their borders but one twice in an all-reduce, once to sum and once to gather;
    a stage on another node is one message away.
    """
    nodes, all_nodes = (-(-gpus // gpus_per_node) for gpus in (degrees.ranks_per_stage, degrees.gpus))
    return ALL_REDUCES_PER_LAYER * model.num_layers * 2 * (nodes - 1) + min(all_nodes, degrees.pipeline_parallel) - 1


def _tile_bytes(flops: _TokenFlops, settings: Settings, degrees: Degrees) -> float:
    """Return what one rank moves in a step for a tile of rows of each of its experts.

    Under CUDA graphs a grouped product of 8 bits does not know how many rows an expert
    gets, and lays out a tile for every one (vllm/model_executor/layers/fused_moe/
    deep_gemm_utils.py, compute_aligned_M). Steps of Qwen3-235B are as long with 4 requests
    as with 20, and as long as all experts' reading and these rows' take.
    """
    rows = efficiency(settings.profile.timed_as or "").expert_tile_rows
    if settings.weights.name != EIGHT_BIT_WEIGHTS:
        return 0.0
    local_experts = flops.experts / degrees.expert_parallel
    hidden, inner = flops.expert_hidden, flops.expert_inner / degrees.expert_tensor_parallel
    row_bytes = HIDDEN_BYTES_PER_TILE_ROW * hidden + INNER_BYTES_PER_TILE_ROW * inner
    return flops.mixture_layers * local_experts * rows * row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _TokenFlops:
    """A token's multiplications in all layers and in the head, and how many layers deal it to how many experts.

    An expert reads `expert_hidden` features and has `expert_inner` between its products.
    """

    layers: float
    head: float
    operations: int
    matmuls: int
    experts: int
    expert_hidden: int
    expert_inner: int
    mixture_layers: int


@lru_cache(maxsize=MOST_KEPT_MODELS)
def _token_flops(same: ByIdentity[ModelSpec]) -> _TokenFlops:
    model = same.value
    kinds = [(operation.kind, block.repeats) for block in model.layers for operation in block.operations]
    inner, hidden = max(
        (
            operation.matmul_shape
            for block in model.layers
            for operation in block.operations
            if operation.matmul_shape and operation.output == EXPERT_OUTPUT
        ),
        default=(0, 0),
    )
    return _TokenFlops(
        layers=sum(_matmul_flops(block) * block.repeats for block in model.layers),
        head=_matmul_flops(model.head),
        operations=sum(repeats for _, repeats in kinds),
        matmuls=sum(repeats for kind, repeats in kinds if kind is OperationKind.MATMUL),
        expert_hidden=hidden,
        expert_inner=inner,
        experts=max((weight.experts for block in model.layers for weight in block.weights), default=1),
        mixture_layers=sum(
            block.repeats for block in model.layers if any(weight.experts > 1 for weight in block.weights)
        ),
    )


def _matmul_flops(block: Block) -> float:
    return sum(
        operation.forward_flops_per_token(0)
        for operation in block.operations
        if operation.kind is not OperationKind.ATTENTION
    )


def _cached_layers(block: Block, model_type: str, settings: Settings, tensor_parallel: int) -> tuple[CachedLayers, ...]:
    if block.kv is not None and block.kv.compressed is not None:
        return tuple(_compressed_layers(block, tensor_parallel))
    attention = sum(operation.forward_flops_per_token(1) for operation in _attentions(block))
    state = block.kv
    grows = layer_bytes_per_token(state, settings.kv, tensor_parallel=tensor_parallel) if state else 0
    dense_bytes = settings.weights.dense_bytes
    fixed = recurrent_state_bytes(
        block,
        tensor_parallel=tensor_parallel,
        activation_bytes=dense_bytes,
        memory_bytes=settings.profile.recurrent_memory_bytes(model_type, dense_bytes),
    )
    layers = CachedLayers(
        window=state.window if state else None,
        bytes_per_token=grows * block.repeats,
        attention_flops_per_position=attention * block.repeats / tensor_parallel,
        state_bytes=fixed * block.repeats,
    )
    return (layers,)


def _compressed_layers(block: Block, tensor_parallel: int) -> Iterator[CachedLayers]:
    """Yield the window, the entries chosen and the index of all entries; every rank scores the whole index."""
    for operation in _attentions(block):
        is_index = operation.region is Region.SEQUENCE
        each = index_row_bytes(operation.key_dim) if is_index else row_bytes(operation.key_dim)
        flops = 2.0 * operation.heads * (operation.key_dim + operation.value_dim)
        yield CachedLayers(
            window=operation.window,
            tokens_per_position=operation.tokens_per_position,
            bytes_per_token=each * block.repeats,
            attention_flops_per_position=flops * block.repeats / (1 if is_index else tensor_parallel),
        )


def _attentions(block: Block) -> Iterator[Operation]:
    return (operation for operation in block.operations if operation.kind is OperationKind.ATTENTION)

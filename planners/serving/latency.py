"""How long prefill and decode take on one replica: a roofline with fitted efficiencies.

The figures and the measurements they were fitted on are in `engines/efficiencies.toml`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from planners.architecture import Block, ModelSpec, OperationKind
from planners.hardware import Hardware
from planners.serving.degrees import Degrees
from planners.serving.engine import read_table
from planners.serving.kv_formats import layer_bytes_per_token, recurrent_state_bytes
from planners.serving.settings import Settings
from planners.serving.weights import Stage

# Attention's output and the feed-forward's are each summed over the ranks
# (Shoeybi et al. 2019, arXiv:1909.08053).
ALL_REDUCES_PER_LAYER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """The fitted figures; `engines/efficiencies.toml` says what each means and on what it was fitted."""

    weight_read_excess: float
    layer_seconds: float
    tensor_parallel_layer_seconds: float
    prefill_compute: float
    prefill_all_reduce: float
    flops_utilization: float
    wait: float
    all_reduce: float
    all_reduce_reference_bytes_per_second: float
    request_seconds: float


@cache
def efficiencies() -> Efficiencies:
    """Return the fitted figures, read once."""
    table = read_table("efficiencies")
    return Efficiencies(**table["decode"], **table["prefill"])


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLayers:
    """Layers that read their cache alike: a token's bytes and attention operations over all of them, on one rank."""

    window: int | None
    bytes_per_token: int
    attention_flops_per_position: float
    state_bytes: int

    def read_bytes(self, context_tokens: float) -> float:
        """Return what one token reads of its sequence's cache; a recurrent state is read and written."""
        return self.bytes_per_token * self.attended(context_tokens) + 2 * self.state_bytes

    def attended(self, context_tokens: float) -> float:
        """Return how many positions a token at this context looks back on."""
        return min(context_tokens, self.window) if self.window else context_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaWork:
    """What one replica does for a token, and how fast its GPUs are. All per rank."""

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
    tensor_parallel: int
    pipeline_parallel: int
    attention_data_parallel: int
    peak_flops_per_second: float
    memory_bytes_per_second: float
    tensor_link_bytes_per_second: float
    stage_link_bytes_per_second: float

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
        if not self.expert_bytes:
            return self.read_bytes
        idle: float = (1 - self.experts_per_token / self.experts) ** tokens
        return self.read_bytes + self.expert_bytes * (1 - idle)

    def decode_step_seconds(self, batch: float, context_tokens: float) -> float:
        """Return the time between two tokens of `batch` requests at a mean context.

        With a pipeline the batch is dealt out to the stages, and a request waits
        until its part has passed all of them.
        """
        fitted = efficiencies()
        group = max(1.0, batch / self.pipeline_parallel)
        part = max(1.0, group / self.attention_data_parallel)
        weights = self.weight_bytes_read(group) / self.memory_bytes_per_second
        compute = part * self.decode_flops(context_tokens) / self.peak_flops_per_second
        cache_bytes = sum(layers.read_bytes(context_tokens) for layers in self.cached)
        cache = part * cache_bytes / self.memory_bytes_per_second
        overhead = fitted.layer_seconds
        if self.tensor_parallel > 1:
            overhead += fitted.tensor_parallel_layer_seconds
        return (
            max(weights, compute)
            + fitted.weight_read_excess * weights
            + cache
            + self.all_reduce_seconds(part)
            + self._hop_seconds(part)
            + self.layers * overhead
        )

    def prefill_seconds(self, tokens: int, *, running: float) -> float:
        """Return the mean time to the first token while `running` requests share the replica."""
        fitted = efficiencies()
        compute = self.prefill_compute_seconds(tokens) / fitted.flops_utilization
        wait = 1 + fitted.wait * (1 - 1 / max(1.0, running))
        # The fitted rate belongs to NVLink; nothing is slower than its link by the same factor.
        link = self.tensor_link_bytes_per_second
        reference = fitted.all_reduce_reference_bytes_per_second
        slowdown = max(1.0, fitted.all_reduce * min(1.0, link / reference))
        seconds = fitted.request_seconds + compute * wait + self.all_reduce_seconds(tokens) * slowdown
        return seconds + self._hop_seconds(tokens)

    def interference_seconds(self, tokens: int) -> float:
        """Return by how much prefilling one prompt delays the requests that are decoding."""
        fitted = efficiencies()
        compute = fitted.prefill_compute * self.prefill_compute_seconds(tokens)
        all_reduce = fitted.prefill_all_reduce * self.all_reduce_seconds(tokens)
        return (compute + all_reduce) / self.pipeline_parallel

    def _hop_seconds(self, tokens: float) -> float:
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
    return ReplicaWork(
        read_bytes=sum(stage.read_bytes for stage in stages),
        expert_bytes=sum(stage.expert_bytes for stage in stages),
        experts=max((weight.experts for block in model.layers for weight in block.weights), default=1),
        experts_per_token=model.experts_per_token,
        layer_flops_per_token=sum(_matmul_flops(block) * block.repeats for block in model.layers) / tensor,
        head_flops_per_token=_matmul_flops(model.head) / tensor,
        cached=tuple(_cached_layers(block, model.model_type, settings, tensor) for block in model.layers),
        all_reduce_bytes_per_token=_exchanged_hidden_states(model, degrees) * hidden_bytes,
        hop_bytes_per_token=hidden_bytes,
        layers=model.num_layers,
        tensor_parallel=tensor,
        pipeline_parallel=degrees.pipeline_parallel,
        attention_data_parallel=degrees.attention_data_parallel,
        peak_flops_per_second=settings.weights.peak_flops_per_second(gpu),
        memory_bytes_per_second=gpu.memory_bytes_per_second,
        tensor_link_bytes_per_second=link,
        stage_link_bytes_per_second=stage_link,
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
    mixtures = sum(block.repeats for block in model.layers if any(weight.experts > 1 for weight in block.weights))
    if degrees.attention_data_parallel == 1:
        return ALL_REDUCES_PER_LAYER * ring * model.num_layers
    gathered = 2 * (group - 1) / group * degrees.attention_data_parallel
    return ring * (ALL_REDUCES_PER_LAYER * model.num_layers - mixtures) + gathered * mixtures


def _matmul_flops(block: Block) -> float:
    return sum(
        operation.forward_flops_per_token(0)
        for operation in block.operations
        if operation.kind is not OperationKind.ATTENTION
    )


def _cached_layers(block: Block, model_type: str, settings: Settings, tensor_parallel: int) -> CachedLayers:
    attention = sum(
        operation.forward_flops_per_token(1)
        for operation in block.operations
        if operation.kind is OperationKind.ATTENTION
    )
    state = block.kv
    grows = layer_bytes_per_token(state, settings.kv, tensor_parallel=tensor_parallel) if state else 0
    dense_bytes = settings.weights.dense_bytes
    fixed = recurrent_state_bytes(
        block,
        tensor_parallel=tensor_parallel,
        activation_bytes=dense_bytes,
        memory_bytes=settings.profile.recurrent_memory_bytes(model_type, dense_bytes),
    )
    return CachedLayers(
        window=state.window if state else None,
        bytes_per_token=grows * block.repeats,
        attention_flops_per_position=attention * block.repeats / tensor_parallel,
        state_bytes=fixed * block.repeats,
    )

"""How long prefill and decode take on one replica: a roofline with fitted efficiencies.

The figures and the measurements they were fitted on are in `engines/efficiencies.toml`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from planners.architecture import Block, ModelSpec, OperationKind
from planners.hardware import Hardware
from planners.serving.engine import read_table
from planners.serving.kv_cache import layer_bytes_per_token
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

    def attended(self, context_tokens: float) -> float:
        """Return how many positions a token at this context looks back on."""
        return min(context_tokens, self.window) if self.window else context_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaWork:
    """What one replica does for a token, and how fast its GPUs are. All per rank."""

    read_bytes: int
    layer_flops_per_token: float
    head_flops_per_token: float
    cached: tuple[CachedLayers, ...]
    all_reduce_bytes_per_token: float
    hop_bytes_per_token: float
    layers: int
    tensor_parallel: int
    pipeline_parallel: int
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

    def decode_step_seconds(self, batch: float, context_tokens: float) -> float:
        """Return the time between two tokens of `batch` requests at a mean context.

        With a pipeline the batch is dealt out to the stages, and a request waits
        until its part has passed all of them.
        """
        fitted = efficiencies()
        part = max(1.0, batch / self.pipeline_parallel)
        weights = self.read_bytes / self.memory_bytes_per_second
        compute = part * self.decode_flops(context_tokens) / self.peak_flops_per_second
        cache_bytes = sum(layers.bytes_per_token * layers.attended(context_tokens) for layers in self.cached)
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
    model: ModelSpec, settings: Settings, hardware: Hardware, stages: Sequence[Stage], *, tensor_parallel: int
) -> ReplicaWork:
    """Return what a replica of these stages does for each token."""
    gpu, pipeline_parallel = hardware.gpu, len(stages)
    within_node = hardware.gpus_per_node
    tensor_link = gpu.link_bytes_per_second if tensor_parallel <= within_node else gpu.nic_bytes_per_second
    replica_in_node = tensor_parallel * pipeline_parallel <= within_node
    stage_link = gpu.link_bytes_per_second if replica_in_node else gpu.nic_bytes_per_second
    hidden_bytes = model.hidden_size * settings.weights.dense_bytes
    # A ring all-reduce moves each rank's message twice, less one share each way
    # (Patarasuk & Yuan 2009, https://doi.org/10.1016/j.jpdc.2008.09.002).
    ring = 2 * (tensor_parallel - 1) / tensor_parallel
    return ReplicaWork(
        read_bytes=sum(stage.read_bytes for stage in stages),
        layer_flops_per_token=sum(_matmul_flops(block) * block.repeats for block in model.layers) / tensor_parallel,
        head_flops_per_token=_matmul_flops(model.head) / tensor_parallel,
        cached=tuple(_cached_layers(block, settings, tensor_parallel) for block in model.layers),
        all_reduce_bytes_per_token=ring * ALL_REDUCES_PER_LAYER * model.num_layers * hidden_bytes,
        hop_bytes_per_token=hidden_bytes,
        layers=model.num_layers,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        peak_flops_per_second=settings.weights.peak_flops_per_second(gpu),
        memory_bytes_per_second=gpu.memory_bytes_per_second,
        tensor_link_bytes_per_second=tensor_link,
        stage_link_bytes_per_second=stage_link,
    )


def _matmul_flops(block: Block) -> float:
    return sum(
        operation.forward_flops_per_token(0)
        for operation in block.operations
        if operation.kind is not OperationKind.ATTENTION
    )


def _cached_layers(block: Block, settings: Settings, tensor_parallel: int) -> CachedLayers:
    attention = sum(
        operation.forward_flops_per_token(1)
        for operation in block.operations
        if operation.kind is OperationKind.ATTENTION
    )
    state = block.kv
    return CachedLayers(
        window=state.window if state else None,
        bytes_per_token=(
            layer_bytes_per_token(state, settings.kv, tensor_parallel=tensor_parallel) * block.repeats if state else 0
        ),
        attention_flops_per_position=attention * block.repeats / tensor_parallel,
    )

"""Communication of a step: who sends what, how often, and how long it takes.

Tensor parallelism all-reduces b·s·h elements twice forward and twice backward
in a layer (Shoeybi et al. 2019, arXiv:1909.08053); with sequence parallelism the
same bytes go as all-gathers and reduce-scatters. Data parallelism reduces each
gradient once; ZeRO-3 gathers the weights forward and backward as well, half as
much again (Rajbhandari et al. 2020, section 7, arXiv:1910.02054).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.jobs.recompute_modules import CORE_ATTENTION, FEED_FORWARD
from plimsoll.planners.layouts.candidates import (
    ALL_LAYERS,
    FULL,
    BoolArray,
    Candidates,
    FloatArray,
    IntArray,
    any_of,
    once,
    recomputes_module,
)
from plimsoll.planners.memory.compression import sent_fraction
from plimsoll.planners.memory.holdings import shard_ranks
from plimsoll.planners.timing.collectives import (
    NO_SECONDS,
    RankGroup,
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    rank_group,
    send_seconds,
)
from plimsoll.planners.timing.efficiency import Efficiency
from plimsoll.planners.timing.rank_parameters import low_precision_parameters, stage_parameters, whole_parameters

ALL_REDUCES_PER_LAYER = 4  # attention and feed-forward, forward and backward
COLLECTIVES_PER_LAYER = 8  # as many all-gathers and reduce-scatters as halves of all-reduces


class Groups:
    """The rank groups of a mesh whose innermost axis is tensor, then context, data and pipeline; made as asked for."""

    def __init__(self, layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> None:
        self._layouts, self._job, self._hardware, self._efficiency = layouts, job, hardware, efficiency
        self._model_ranks = layouts.tensor_parallel * layouts.context_parallel

    @cached_property
    def tensor(self) -> RankGroup:
        """Return the ranks that divide a layer's matrices."""
        return self._group(self._layouts.tensor_parallel, np.ones_like(self._layouts.tensor_parallel))

    @cached_property
    def context(self) -> RankGroup:
        """Return the ranks that divide a sequence, each of another group of those that exchange heads."""
        exchanging = self._layouts.context_all_to_all
        return self._group(self._layouts.context_parallel // exchanging, self._layouts.tensor_parallel * exchanging)

    def head_exchange_seconds(self, message_bytes: FloatArray) -> FloatArray:
        """Return one exchange of heads for tokens between ranks that divide a sequence."""
        ranks, stride = self._layouts.context_all_to_all, self._layouts.tensor_parallel
        return all_to_all_seconds(message_bytes, ranks, stride, self._hardware, self._efficiency)

    @cached_property
    def shard(self) -> RankGroup:
        """Return the ranks that divide states."""
        over_context = self._job.profile.sharding.over_context
        stride = self._layouts.tensor_parallel if over_context else self._model_ranks
        return self._data_group(shard_ranks(self._layouts, self._job), stride)

    @cached_property
    def replica(self) -> RankGroup:
        """Return the ranks that have copies of the same part of the states."""
        group = self._layouts.shard_group
        return self._data_group(self._layouts.data_parallel // group, self._model_ranks * group)

    @cached_property
    def data(self) -> RankGroup:
        """Return the ranks that add up gradients."""
        return self._data_group(
            self._layouts.data_parallel * self._layouts.context_parallel, self._layouts.tensor_parallel
        )

    @cached_property
    def secondary(self) -> RankGroup:
        """Return the ranks that share a second copy of the weights."""
        return self._data_group(self._layouts.secondary_shard_group, self._model_ranks)

    @cached_property
    def pipeline(self) -> RankGroup:
        """Return the stages of a pipeline."""
        return self._group(self._layouts.pipeline_parallel, self._model_ranks * self._layouts.data_parallel)

    def _data_group(self, ranks: IntArray, stride: IntArray) -> RankGroup:
        return self._group(ranks, stride, self._efficiency.stack.data_hop_multiple)

    def _group(self, ranks: IntArray, stride: IntArray, hop_multiple: float = 1.0) -> RankGroup:
        return rank_group(ranks, stride, self._hardware, self._efficiency, hop_multiple=hop_multiple)


@once
def tensor_parallel_message_bytes(layouts: Candidates, job: Job) -> FloatArray:
    """Return one all-reduce of a layer: b·s·h elements of the compute precision."""
    result: FloatArray = layouts.local_tokens(job.sequence_length) * job.model.hidden_size * job.precision.compute_bytes
    return result


def recomputed_share(layouts: Candidates, job: Job) -> FloatArray:
    """Return the part of a stage's layers that full recompute covers, of the mean stage."""
    stage_layers = np.ceil(job.model.num_layers / layouts.pipeline_parallel)
    return np.where(layouts.full_layers == ALL_LAYERS, 1.0, np.minimum(layouts.full_layers / stage_layers, 1.0))


def tensor_parallel_seconds_per_layer(
    layouts: Candidates, job: Job, groups: Groups, *, feed_forward: str = FEED_FORWARD
) -> FloatArray:
    """Return a layer's all-reduces of one micro-batch, those of recomputation included.

    A layer that is computed again has both of its forward ones again, one whose `feed_forward` module is has its own.
    """
    if groups.tensor.is_alone:
        return NO_SECONDS
    one = all_reduce_seconds(tensor_parallel_message_bytes(layouts, job), groups.tensor)
    of_layers = np.where(layouts.recompute == FULL, recomputed_share(layouts, job), 0.0)
    of_modules = recomputes_module(layouts, job, feed_forward)
    again = ALL_REDUCES_PER_LAYER / 2 * np.where(of_modules, 0.5, of_layers)
    result: FloatArray = one * (ALL_REDUCES_PER_LAYER + again)
    return result


def context_message_bytes(layouts: Candidates, job: Job) -> FloatArray:
    """Return one rank's keys and values of a layer, which a ring passes on."""
    heads = np.maximum(job.model.key_value_heads / layouts.tensor_parallel, 1.0)
    head_dim = max(op.key_dim for part in job.layers for op in part.block.operations)
    tokens = layouts.local_tokens(job.sequence_length)
    result: FloatArray = 2.0 * heads * head_dim * tokens * job.precision.compute_bytes
    return result


def context_seconds_per_layer(
    layouts: Candidates, job: Job, groups: Groups, attention_seconds: FloatArray
) -> FloatArray:
    """Return what ring attention cannot hide behind the attention itself.

    The ring passes keys and values on once forward and, with their gradients,
    twice backward (Liu et al. 2023, arXiv:2310.01889). Ranks that exchange heads for tokens before it and tokens
    for heads behind it wait for that (Jacobs et al. 2023, arXiv:2309.14509; Transformer Engine,
    attention/dot_product_attention/context_parallel.py, `flash_attn_a2a_communicate`).
    """
    is_exchanged = layouts.context_all_to_all.max(initial=1) > 1
    if groups.context.is_alone and not is_exchanged:
        return NO_SECONDS
    ring = ring_hops(layouts) * send_seconds(context_message_bytes(layouts, job), groups.context)
    result: FloatArray = np.maximum(3.0 * ring - attention_seconds, 0.0)
    if not is_exchanged:
        return result
    each = 2.0 * (
        groups.head_exchange_seconds(query_bytes(layouts, job))
        + groups.head_exchange_seconds(context_message_bytes(layouts, job) / 2.0)
    )
    return result + head_exchanges(layouts, job) * each


def ring_hops(layouts: Candidates) -> IntArray:
    """Return how often keys and values are passed on, with which come as many tokens as heads were given for."""
    hops: IntArray = np.maximum(layouts.context_parallel // layouts.context_all_to_all - 1, 0)
    return hops


def query_bytes(layouts: Candidates, job: Job) -> FloatArray:
    """Return one rank's queries of a layer, or what attention makes of them."""
    heads = np.maximum(job.model.attention_heads / layouts.tensor_parallel, 1.0)
    head_dim = max(op.key_dim for part in job.layers for op in part.block.operations)
    result: FloatArray = heads * head_dim * layouts.local_tokens(job.sequence_length) * job.precision.compute_bytes
    return result


def head_exchanges(layouts: Candidates, job: Job) -> FloatArray:
    """Return how often queries, keys, values and output change hands: forward, backward, and once more recomputed."""
    of_layers = np.where(layouts.recompute == FULL, recomputed_share(layouts, job), 0.0)
    return 2.0 + np.where(recomputes_module(layouts, job, CORE_ATTENTION), 1.0, of_layers)


def data_parallel_seconds(layouts: Candidates, job: Job, groups: Groups, efficiency: Efficiency) -> FloatArray:
    """Return the gradient traffic of a step, and the gathering of weights within it, hidden or not.

    Stage 0 and 1 reduce once a step. From stage 2 on a rank keeps only its part of
    the gradients and so reduces after every micro-batch, in one call a layer or one a
    matrix, as the stack does it. Weights are gathered as often as `gathers` says. Copies of what is sharded add up
    their parts of the gradients, once a step (Megatron-Core: core/distributed/param_and_grad_buffer.py,
    `start_grad_sync`). With a second copy of the weights the first gather of a step alone is of all ranks
    (`planners/memory/secondary_shards.py`).
    """
    is_sharded = layouts.zero_stage >= 2
    is_copied = (layouts.zero_stage >= 1) & (layouts.shard_group < layouts.data_parallel)
    gradient_bytes = stage_parameters(layouts, job) * job.reduce_bytes
    gradient_bytes = gradient_bytes * sent_fraction(job)
    if not any_of(is_sharded):
        seconds = _reduced_once_seconds(gradient_bytes, layouts, job, groups, efficiency)
    else:
        seconds = _sharded_seconds(gradient_bytes, layouts, job, groups, efficiency)
        if not is_sharded.all():
            once = _reduced_once_seconds(gradient_bytes, layouts, job, groups, efficiency)
            seconds = np.where(is_sharded, seconds, once)
    if not any_of(is_copied):
        return seconds
    replicas = all_reduce_seconds(gradient_bytes / np.maximum(shard_ranks(layouts, job), 1), groups.replica)
    return np.where(is_copied, seconds + replicas, seconds)


def _sharded_seconds(
    gradient_bytes: FloatArray, layouts: Candidates, job: Job, groups: Groups, efficiency: Efficiency
) -> FloatArray:
    """Return a step's gathers of the weights and reductions of the gradients among the ranks that share them."""
    micro_batches = np.where(gathers_once_a_step(layouts, job), 1, layouts.micro_batches(job.global_batch_size))
    reduce = _by_layer(gradient_bytes, groups.shard, layouts, job, efficiency)
    gather = _by_layer(_gathered_bytes(layouts, job), groups.shard, layouts, job, efficiency)
    gathered = gathers(layouts, job) * gather
    has_copy = layouts.secondary_shard_group > 1
    if any_of(has_copy):
        near = _by_layer(_gathered_bytes(layouts, job), groups.secondary, layouts, job, efficiency)
        gathered = np.where(has_copy, gather + (gathers(layouts, job) - 1) * near, gathered)
    return np.asarray(gathered + micro_batches * reduce)


def _reduced_once_seconds(
    gradient_bytes: FloatArray, layouts: Candidates, job: Job, groups: Groups, efficiency: Efficiency
) -> FloatArray:
    """Return the reduction of whole gradients, once a step; ZeRO stage 1 makes calls of its own for each layer."""
    whole = all_reduce_seconds(gradient_bytes, groups.data)
    is_by_layer = (layouts.zero_stage == 1) & np.bool_(not job.profile.update.deals_parameters)
    if not any_of(is_by_layer):
        return whole
    by_layer = _by_layer(gradient_bytes, groups.data, layouts, job, efficiency)
    is_copied = layouts.shard_group < layouts.data_parallel
    if any_of(is_copied):
        by_layer = np.where(is_copied, _by_layer(gradient_bytes, groups.shard, layouts, job, efficiency), by_layer)
    return np.where(is_by_layer, by_layer, whole)


@once
def gathers(layouts: Candidates, job: Job) -> IntArray:
    """Return how often each layer's weights are gathered in a step, apart from the update's own gathering.

    Stage 3 gathers twice in every micro-batch. FSDP without resharding between the
    passes gathers once: it keeps a layer to the end of its backward pass, and lets
    go of it there. Source: PyTorch, distributed/fsdp/_fully_shard/_fsdp_param_group.py,
    post_backward (reshard) and reshard (which skips the forward pass alone).
    """
    keeps_shards = job.profile.weights.gathering.get("2") == "gathered_once"
    each = np.where(layouts.zero_stage == 3, 2, np.where((layouts.zero_stage == 2) & keeps_shards, 1, 0))
    micro_batches = layouts.micro_batches(job.global_batch_size)
    result: IntArray = np.where(gathers_once_a_step(layouts, job), np.minimum(each, 1), each * micro_batches)
    return result


@once
def gathers_once_a_step(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a pipeline gathers before its first micro-batch and reduces after its last.

    Source: PyTorch, distributed/pipelining/stage.py: resharding and gradient
    synchronisation are off till perform_reduce_grad, after all micro-batches.
    """
    result: BoolArray = (layouts.pipeline_parallel > 1) & np.bool_(job.profile.weights.pipelines_gather_once)
    return result


def update_gather_seconds(layouts: Candidates, job: Job, groups: Groups, efficiency: Efficiency) -> FloatArray:
    """Return the gathering of the weights that each rank updated a part of, where they lie whole: once a step."""
    lies_whole = (layouts.zero_stage > 0) & (gathers(layouts, job) == 0)
    if not any_of(lies_whole):
        return NO_SECONDS
    return np.where(lies_whole, _by_layer(_updated_bytes(layouts, job), groups.shard, layouts, job, efficiency), 0.0)


def _by_layer(
    total_bytes: FloatArray, group: RankGroup, layouts: Candidates, job: Job, efficiency: Efficiency
) -> FloatArray:
    """Return the seconds of as many calls as the stack makes for a rank's layers."""
    calls = np.maximum(job.model.num_layers / layouts.pipeline_parallel, 1.0) * efficiency.stack.gather_calls
    result: FloatArray = calls * all_gather_seconds(total_bytes / calls, group)
    return result


@once
def _gathered_bytes(layouts: Candidates, job: Job) -> FloatArray:
    """Return the weights of a rank's share in the precision they are gathered in, frozen ones included."""
    result: FloatArray = whole_parameters(layouts, job) * float(job.precision.compute_bytes)
    return result


@once
def _updated_bytes(layouts: Candidates, job: Job) -> FloatArray:
    """Return the weights of a rank's share that learn; those that lie in 8 or 4 bits alone may be gathered so."""
    width = float(job.precision.compute_bytes)
    result: FloatArray = stage_parameters(layouts, job) * width
    if job.low_precision is not None and job.low_precision_weights and job.method == "full":
        result = result - low_precision_parameters(layouts, job) * (width - job.low_precision.gathered_bytes)
    return result

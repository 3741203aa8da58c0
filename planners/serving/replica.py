"""One replica: a tensor- and pipeline-parallel copy of the model, its memory and its cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planners.architecture import ModelSpec
from planners.questions import ServingQuestion
from planners.serving.answer import (
    KvCache,
    KvContext,
    KvGroup,
    ServingMemory,
    ServingMemoryItems,
    StageServingMemory,
)
from planners.serving.budget import StageBudget, stage_budgets
from planners.serving.degrees import Degrees
from planners.serving.kv_cache import (
    GROWING,
    CacheLayout,
    CacheTerms,
    Capacity,
    cache_layout,
    capacity,
    usable_blocks,
)
from planners.serving.kv_formats import layer_bytes_per_token
from planners.serving.latency import ReplicaWork, replica_work
from planners.serving.settings import Settings
from planners.serving.weights import Stage, replica_stages

FITS, TIGHT, NO = "fits", "tight", "no"
# More blocks than any card has; for a stage of layers that keep no cache.
UNBOUNDED_BLOCKS = 2**62
# Lengths that the cache is described at: `max_model_len` and its halves, down to about a page of text.
LEAST_CONTEXT_TOKENS = 1024
MOST_CONTEXTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A replica's degrees and what follows from them.

    `places` is how many requests of the traffic run at once, the lesser of what
    the cache holds and the engine's batch limit. `keeps_limit` is false where the
    engine would take more of the card than is free.
    """

    degrees: Degrees
    utilization_fraction: float
    memory: ServingMemory
    kv: KvCache
    verdict: str
    keeps_limit: bool
    places: int
    stages: tuple[Stage, ...]
    layout: CacheLayout

    @property
    def gpus(self) -> int:
        """Return the GPUs of one replica."""
        return self.degrees.gpus

    @property
    def fits(self) -> bool:
        """Return whether weights and one request of `max_model_len` fit."""
        return self.verdict != NO


def plan_replica(question: ServingQuestion, settings: Settings, degrees: Degrees) -> Replica:
    """Return the replica of these degrees; the stage with the fewest blocks decides for all."""
    model, hardware = question.model, question.hardware
    stages = _stages(model, settings, degrees)
    layout = settings_cache_layout(question, settings, degrees)
    budgets = stage_budgets(model, settings, stages, degrees, total_bytes=hardware.gpu.memory_bytes)
    block_bytes = tuple(layout.stage_block_bytes(stage.layers) for stage in stages)
    blocks = [_blocks(budget.available_bytes, size) for budget, size in zip(budgets, block_bytes, strict=True)]
    binding = blocks.index(min(blocks))
    held = capacity(layout, blocks[binding], max_model_len=settings.max_model_len, profile=settings.profile)
    memory = _memory(question, stages, budgets, tuple(size * blocks[binding] for size in block_bytes), binding)
    low_blocks = min(
        _blocks(budget.available_low_bytes, size) for budget, size in zip(budgets, block_bytes, strict=True)
    )
    low = capacity(layout, low_blocks, max_model_len=settings.max_model_len, profile=settings.profile)
    keeps_limit = memory.claimed_bytes <= memory.limit_bytes
    requests = _requests_held(settings, layout, held.blocks)
    fits = held.fits_one_request and keeps_limit
    ranks = degrees.attention_data_parallel
    return Replica(
        degrees=degrees,
        utilization_fraction=budgets[binding].utilization_fraction,
        memory=memory,
        kv=_kv_cache(settings, layout, budgets[binding], stages[binding].layers, held, requests * ranks, ranks),
        verdict=(FITS if low.fits_one_request else TIGHT) if fits else NO,
        keeps_limit=keeps_limit,
        places=min(requests, settings.max_num_seqs) * ranks,
        stages=stages,
        layout=layout,
    )


def _stages(model: ModelSpec, settings: Settings, degrees: Degrees) -> tuple[Stage, ...]:
    """Return what one rank of each stage holds, weights as a start of the same engine showed where there was one."""
    stages = replica_stages(model, settings.weights, degrees)
    if settings.learned is None or settings.learned.weights_factor == 1:
        return stages
    factor = settings.learned.weights_factor
    return tuple(
        replace(stage, weight_bytes=round(stage.total_bytes * factor) - stage.buffer_bytes) for stage in stages
    )


def _requests_held(settings: Settings, layout: CacheLayout, blocks: int) -> int:
    """Return how many requests of the traffic the blocks hold at their end, by the mean of what each takes."""
    lengths = settings.sequence_tokens
    taken = sum(layout.blocks_held(tokens) for tokens in lengths)
    return usable_blocks(blocks, settings.profile) * len(lengths) // taken


def _contexts(settings: Settings, layout: CacheLayout, blocks: int, ranks: int) -> tuple[KvContext, ...]:
    """Return how many requests of each length a replica of so many attention ranks holds, by growing length."""
    lengths = [settings.max_model_len]
    while lengths[-1] // 2 >= LEAST_CONTEXT_TOKENS and len(lengths) < MOST_CONTEXTS:
        lengths.append(lengths[-1] // 2)
    usable = usable_blocks(blocks, settings.profile)
    return tuple(
        KvContext(tokens=tokens, requests=usable // layout.blocks_held(tokens) * ranks) for tokens in reversed(lengths)
    )


def _last_block_waste(settings: Settings, layout: CacheLayout) -> float:
    """Return the part of the requests' blocks that is empty at their end, over the caches that grow."""
    held = [layout.slots_held(tokens) for tokens in settings.sequence_tokens]
    slots = sum(taken for taken, _ in held)
    return sum(empty for _, empty in held) / slots if slots else 0.0


def _blocks(available_bytes: int, block_bytes: int) -> int:
    """Return the blocks of a stage; one whose layers keep no cache sets no bound."""
    return available_bytes // block_bytes if block_bytes else UNBOUNDED_BLOCKS


def settings_cache_layout(question: ServingQuestion, settings: Settings, degrees: Degrees) -> CacheLayout:
    """Return the cache's layout at a replica's degrees."""
    terms = CacheTerms(
        model_type=question.model.model_type,
        kv=settings.kv,
        profile=settings.profile,
        block_size=settings.block_size,
        max_model_len=settings.max_model_len,
        in_flight_tokens=settings.max_num_batched_tokens * settings.profile.overlapping_batches,
        activation_bytes=settings.weights.dense_bytes,
        draft_tokens=settings.traffic.draft_tokens,
    )
    return cache_layout(
        question.model,
        terms,
        tensor_parallel=degrees.tensor_parallel,
        context_parallel=degrees.decode_context_parallel,
    )


def work_of(question: ServingQuestion, settings: Settings, replica: Replica) -> ReplicaWork:
    """Return what the replica does for each token."""
    return replica_work(question.model, settings, question.hardware, replica.stages, replica.degrees)


def _memory(
    question: ServingQuestion,
    stages: tuple[Stage, ...],
    budgets: tuple[StageBudget, ...],
    cache_bytes: tuple[int, ...],
    binding: int,
) -> ServingMemory:
    rows = tuple(map(_stage_memory, stages, budgets, cache_bytes))
    limit = question.hardware.limit_bytes
    bound = rows[binding]
    return ServingMemory(
        peak_bytes=bound.peak_bytes,
        limit_bytes=limit,
        margin_bytes=limit - bound.peak_bytes,
        requested_bytes=max(budget.requested_bytes for budget in budgets),
        claimed_bytes=max(budget.claimed_bytes for budget in budgets),
        items=bound.items,
        stages=rows,
    )


def _stage_memory(stage: Stage, budget: StageBudget, cache_bytes: int) -> StageServingMemory:
    items = ServingMemoryItems(
        weights=budget.weights_bytes,
        kv_cache=cache_bytes,
        activations=budget.activations_bytes,
        cuda_graphs=budget.cuda_graphs_bytes,
        runtime=budget.non_torch_bytes,
    )
    return StageServingMemory(
        stage=stage.index,
        layers=(stage.layers.start, stage.layers.stop - 1),
        peak_bytes=items.total_bytes,
        available_bytes=budget.available_bytes,
        items=items,
    )


def _kv_cache(
    settings: Settings,
    layout: CacheLayout,
    budget: StageBudget,
    stage_layers: range,
    held: Capacity,
    requests: int,
    ranks: int,
) -> KvCache:
    growing = [bucket for bucket in layout.buckets if bucket.state.kind in GROWING]
    per_layer = {id(bucket): layer_bytes_per_token(bucket.state, settings.kv) for bucket in layout.buckets}
    return KvCache(
        available_bytes=budget.available_bytes,
        available_low_bytes=budget.available_low_bytes,
        available_high_bytes=budget.available_high_bytes,
        bytes_per_token=sum(per_layer[id(bucket)] * len(bucket.layers) for bucket in growing),
        bytes_per_token_per_gpu=sum(bucket.bytes_per_token * bucket.layers_within(stage_layers) for bucket in growing),
        block_size=layout.block_size,
        blocks=held.blocks,
        tokens=held.tokens,
        max_concurrency=held.max_concurrency,
        requests_held=requests,
        last_block_waste_fraction=_last_block_waste(settings, layout),
        groups=tuple(
            KvGroup(
                kind=bucket.state.kind.value,
                layers=len(bucket.layers),
                bytes_per_token_per_layer=per_layer[id(bucket)],
                window=bucket.state.window,
                state_bytes_per_layer=0 if bucket.bytes_per_token else bucket.page_bytes,
            )
            for bucket in layout.buckets
        ),
        contexts=_contexts(settings, layout, held.blocks, ranks),
    )

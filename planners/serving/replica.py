"""One replica: a tensor- and pipeline-parallel copy of the model, its memory and its cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from plimsoll.planners.architecture import GROWING, KvKind, ModelSpec
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.answer import (
    KvCache,
    KvContext,
    KvGroup,
    ServingMemory,
    ServingMemoryItems,
    StageServingMemory,
)
from plimsoll.planners.serving.cache.kv_formats import layer_bytes_per_token
from plimsoll.planners.serving.cache.pools import (
    Bucket,
    Cache,
    Capacity,
    Pools,
    least,
    requests_held,
    requests_running,
    shared,
)
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.engines.budgets import stage_budgets
from plimsoll.planners.serving.engines.caches import replica_cache
from plimsoll.planners.serving.memory.budget import StageBudget
from plimsoll.planners.serving.settings.settings import Settings
from plimsoll.planners.serving.times.replica_work import ReplicaWork, replica_work
from plimsoll.planners.serving.weights.stages import Stage, replica_stages

FITS, TIGHT, NO = "fits", "tight", "no"
# Lengths that the cache is described at: `max_model_len` and its halves, down to about a page of text.
LEAST_CONTEXT_TOKENS = 1024
MOST_CONTEXTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A replica's degrees and what follows from them.

    `places` is how many requests of the traffic run at once, the lesser of what
    the cache holds of those on their way and the engine's batch limit. `keeps_limit` is false where the
    engine would take more of the card than is free. `share_bytes` is what the engine means to take of a GPU of the
    binding stage, `held_bytes` what of it is not for the cache; `least_blocks` are the cache's at the low end of
    its band. `pools` are the units that all
    stages have of their `cache`.
    """

    degrees: Degrees
    utilization_fraction: float
    memory: ServingMemory
    kv: KvCache
    verdict: str
    keeps_limit: bool
    share_bytes: int
    held_bytes: int
    least_blocks: int
    places: int
    stages: tuple[Stage, ...]
    cache: Cache
    pools: Pools

    @property
    def gpus(self) -> int:
        """Return the GPUs of one replica."""
        return self.degrees.gpus

    @property
    def fits(self) -> bool:
        """Return whether weights and one request of `max_model_len` fit."""
        return self.verdict != NO


def plan_started(question: ServingQuestion, settings: Settings, degrees: Degrees) -> tuple[Settings, Replica]:
    """Return the replica with a batch limit that its engine starts with, and its settings with that limit.

    A smaller batch leaves more to the cache, so that the states of the blocks counted first all have their place;
    counted are those at the low end of the cache's band, as one block too few keeps the engine from starting.
    Source: vllm/config/compilation.py, "max_num_seqs exceeds available Mamba cache blocks".
    """
    replica = plan_replica(question, settings, degrees)
    has_states = any(bucket.state.kind is KvKind.RECURRENT for bucket in replica.cache.buckets)
    most = replica.least_blocks
    if not (settings.profile.states_bound_sequences and has_states and 0 < most < settings.max_num_seqs):
        return settings, replica
    note = (
        f"max_num_seqs is {most:,}, not {settings.max_num_seqs:,}: {settings.profile.engine} does not start with more "
        f"sequences than cache blocks, of which each sequence's recurrent state takes one. "
        f"{replica.kv.blocks:,} blocks are planned, {most:,} at the low end of the estimate."
    )
    bounded = replace(settings, max_num_seqs=most, assumptions=(*settings.assumptions, note))
    return bounded, plan_replica(question, bounded, degrees)


def plan_replica(question: ServingQuestion, settings: Settings, degrees: Degrees) -> Replica:
    """Return the replica of these degrees; the stage with the fewest blocks decides for all."""
    model, hardware = question.model, question.hardware
    stages = _stages(model, settings, degrees)
    cache = replica_cache(question, settings, degrees)
    budgets = stage_budgets(model, settings, stages, degrees, total_bytes=hardware.gpu.memory_bytes)
    layers = [stage.layers for stage in stages]
    own = [cache.pools(budget.available_bytes, stage) for budget, stage in zip(budgets, layers, strict=True)]
    # Of stages that have room for no block the one decides that lacks most.
    left = [budget.requested_bytes - budget.held_bytes for budget in budgets]
    pools, binding = least(own), min(range(len(own)), key=lambda stage: (own[stage], left[stage]))
    held = cache.capacity(pools, max_model_len=settings.max_model_len)
    cache_bytes = tuple(cache.pool_bytes(pools, stage) for stage in layers)
    memory = _memory(question, stages, budgets, cache_bytes, binding)
    lows = [cache.pools(budget.available_low_bytes, stage) for budget, stage in zip(budgets, layers, strict=True)]
    low = cache.capacity(least(lows), max_model_len=settings.max_model_len)
    keeps_limit = memory.claimed_bytes <= memory.limit_bytes
    lengths = settings.sequence_tokens
    requests = requests_held(shared(cache, pools, lengths), [cache.held(tokens) for tokens in lengths])
    fits = held.fits_one_request and keeps_limit
    ranks = degrees.attention_data_parallel
    return Replica(
        degrees=degrees,
        utilization_fraction=budgets[binding].utilization_fraction,
        memory=memory,
        kv=_kv_cache(settings, cache, pools, budgets[binding], stages[binding].layers, held, requests * ranks, degrees),
        verdict=(FITS if low.fits_one_request else TIGHT) if fits else NO,
        keeps_limit=keeps_limit,
        share_bytes=budgets[binding].requested_bytes,
        held_bytes=budgets[binding].held_bytes,
        least_blocks=low.blocks,
        places=min(_running(settings, cache, pools) if requests else 0, settings.most_running) * ranks,
        stages=stages,
        cache=cache,
        pools=pools,
    )


def _stages(model: ModelSpec, settings: Settings, degrees: Degrees) -> tuple[Stage, ...]:
    """Return what one rank of each stage holds, weights as a start of the same engine showed where there was one."""
    profile = settings.profile
    stages = replica_stages(
        model,
        settings.weights,
        degrees,
        engine=profile.engine,
        latent_workspace_bytes=profile.latent_workspace_bytes,
    )
    if settings.learned is None or settings.learned.weights_factor == 1:
        return stages
    factor = settings.learned.weights_factor
    return tuple(
        replace(stage, weight_bytes=round(stage.total_bytes * factor) - stage.buffer_bytes) for stage in stages
    )


def _contexts(settings: Settings, cache: Cache, pools: Pools, ranks: int) -> tuple[KvContext, ...]:
    """Return how many requests of each length a replica of so many attention ranks holds, by growing length."""
    lengths = [settings.max_model_len]
    while lengths[-1] // 2 >= LEAST_CONTEXT_TOKENS and len(lengths) < MOST_CONTEXTS:
        lengths.append(lengths[-1] // 2)
    return tuple(
        KvContext(tokens=tokens, requests=requests_held(shared(cache, pools, [tokens]), [cache.held(tokens)]) * ranks)
        for tokens in reversed(lengths)
    )


def _running(settings: Settings, cache: Cache, pools: Pools) -> int:
    """Return how many requests of the traffic are on their way at once in the pools of one rank.

    An engine that takes room as tokens come holds as much of an answer, on average, as its scheduler says; the longer
    an answer, the longer it runs.
    """
    part = settings.profile.scheduling.held_output_fraction
    needs = [(cache.held(first + math.ceil(last * part)), last) for first, last in settings.lengths]
    return requests_running(shared(cache, pools, settings.sequence_tokens), needs)


def _last_block_waste(settings: Settings, cache: Cache) -> float:
    """Return the part of the requests' blocks that is empty at their end, over the caches that grow."""
    held = [cache.slots_held(tokens) for tokens in settings.sequence_tokens]
    slots = sum(taken for taken, _ in held)
    return sum(empty for _, empty in held) / slots if slots else 0.0


def work_of(question: ServingQuestion, settings: Settings, replica: Replica) -> ReplicaWork:
    """Return what the replica does for each token."""
    return replica_work(
        question.model,
        settings,
        question.hardware,
        replica.stages,
        replica.degrees,
        has_scale_blocks=question.scale_block is not None,
    )


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
    cache: Cache,
    pools: Pools,
    budget: StageBudget,
    stage_layers: range,
    held: Capacity,
    requests: int,
    degrees: Degrees,
) -> KvCache:
    growing = [bucket for bucket in cache.buckets if _grows(bucket, settings.max_model_len)]
    latents = settings.profile.latents
    per_layer = {
        id(bucket): layer_bytes_per_token(bucket.state, settings.kv, latents=latents)
        if bucket.whole_bytes_per_token is None
        else bucket.whole_bytes_per_token
        for bucket in cache.buckets
    }
    return KvCache(
        available_bytes=budget.available_bytes,
        available_low_bytes=budget.available_low_bytes,
        available_high_bytes=budget.available_high_bytes,
        bytes_per_token=sum(per_layer[id(bucket)] * len(bucket.layers) for bucket in growing),
        # Decode context parallelism deals a sequence's tokens out: each GPU has one in so many.
        bytes_per_token_per_gpu=sum(bucket.bytes_per_token * bucket.layers_within(stage_layers) for bucket in growing)
        // degrees.decode_context_parallel,
        block_size=cache.block_size,
        blocks=held.blocks,
        tokens=held.tokens,
        max_concurrency=held.max_concurrency,
        requests_held=requests,
        last_block_waste_fraction=_last_block_waste(settings, cache),
        groups=tuple(
            KvGroup(
                kind=bucket.state.kind.value,
                layers=len(bucket.layers),
                bytes_per_token_per_layer=per_layer[id(bucket)],
                window=bucket.state.window,
                state_bytes_per_layer=0 if bucket.bytes_per_token else bucket.page_bytes,
            )
            for bucket in cache.buckets
        ),
        contexts=_contexts(settings, cache, pools, degrees.attention_data_parallel),
    )


def _grows(bucket: Bucket, max_model_len: int) -> bool:
    """Return whether every token of a request takes its place: a window wider than any request slides for none."""
    state = bucket.state
    is_wide = state.window is not None and state.window >= max_model_len
    return state.kind in GROWING or state.compressed is not None or is_wide

"""The cache of a question's engine at a replica's degrees."""

from __future__ import annotations

from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.compressed_cache import compressed_cache, is_compressed
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.engine import EngineProfile
from plimsoll.planners.serving.engine_rules import CacheRule
from plimsoll.planners.serving.kv_cache import cache_layout
from plimsoll.planners.serving.kv_formats import CacheTerms
from plimsoll.planners.serving.pools import Cache
from plimsoll.planners.serving.sequence_cache import sequence_cache
from plimsoll.planners.serving.settings import Settings
from plimsoll.planners.serving.token_pools import token_pools

STATIC = "static"


def replica_cache(question: ServingQuestion, settings: Settings, degrees: Degrees) -> Cache:
    """Return how the engine lays out the model's cache on one rank."""
    profile, model, tensor = settings.profile, question.model, degrees.tensor_parallel
    terms = _terms(question, settings, degrees)
    if is_compressed(model):
        return compressed_cache(model, terms, context_parallel=degrees.decode_context_parallel)
    if profile.cache_rule is CacheRule.PAGED_POOLS:
        return token_pools(model, terms, profile.pool_rules, tensor_parallel=tensor)
    if profile.cache_rule is CacheRule.SEQUENCES:
        is_static = settings.cache_implementation == STATIC
        return sequence_cache(model, terms, tensor_parallel=tensor, is_static=is_static)
    return cache_layout(model, terms, tensor_parallel=tensor, context_parallel=degrees.decode_context_parallel)


def batches_under_way(profile: EngineProfile, degrees: Degrees) -> int:
    """Return how many batches' tokens a window may still hold; versions that count more than one fill a pipeline.

    Source: vllm/config/vllm.py, max_concurrent_batches: the stages of a pipeline, or two where batches overlap.
    """
    batches = profile.overlapping_batches
    return batches if batches == 1 else max(batches, degrees.pipeline_parallel)


def _terms(question: ServingQuestion, settings: Settings, degrees: Degrees) -> CacheTerms:
    return CacheTerms(
        model_type=question.model.model_type,
        kv=settings.kv,
        profile=settings.profile,
        block_size=settings.block_size,
        max_model_len=settings.max_model_len,
        in_flight_tokens=settings.max_num_batched_tokens * batches_under_way(settings.profile, degrees),
        activation_bytes=settings.weights.dense_bytes,
        draft_tokens=settings.traffic.draft_tokens,
        batch_sequences=settings.max_num_seqs * degrees.pipeline_parallel,
        source_tokens=settings.input_tokens,
    )

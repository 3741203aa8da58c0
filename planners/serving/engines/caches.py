"""The cache of a question's engine at a replica's degrees."""

from __future__ import annotations

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.planners.ground.hardware import compute_capability
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.cache.compressed_rows import is_compressed
from plimsoll.planners.serving.cache.kv_formats import CacheTerms
from plimsoll.planners.serving.cache.pools import Cache
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.engines.engine import engine_named
from plimsoll.planners.serving.releases.profile import EngineProfile
from plimsoll.planners.serving.settings.settings import Settings


def replica_cache(question: ServingQuestion, settings: Settings, degrees: Degrees) -> Cache:
    """Return how the engine lays out the model's cache on one rank.

    Raises `NotYetAvailable` for a compressed cache of an engine whose layout of it is not known.
    """
    model, engine = question.model, engine_named(settings.profile.engine)
    lay_out = engine.compressed_cache if is_compressed(model) else engine.cache
    if lay_out is None:
        raise NotYetAvailable(
            f"A compressed cache (DeepSeek-V4) is not sized for {settings.profile.engine} yet.", pointer="/model"
        )
    return lay_out(model, _terms(question, settings, degrees), degrees)


def batches_under_way(profile: EngineProfile, degrees: Degrees) -> int:
    """Return how many batches' tokens a window may still hold; versions that count more than one fill a pipeline.

    Source: vllm/config/vllm.py, max_concurrent_batches: the stages of a pipeline, or two where batches overlap.
    """
    batches = profile.overlapping_batches
    return batches if batches == 1 else max(batches, degrees.pipeline_parallel)


def _terms(question: ServingQuestion, settings: Settings, degrees: Degrees) -> CacheTerms:
    checkpoints, model_type = settings.profile.checkpoints, question.model.model_type
    capability = compute_capability(question.hardware.gpu)
    return CacheTerms(
        model_type=model_type,
        kv=settings.kv,
        profile=settings.profile,
        block_size=settings.block_size,
        max_model_len=settings.max_model_len,
        in_flight_tokens=settings.max_num_batched_tokens * batches_under_way(settings.profile, degrees),
        activation_bytes=settings.weights.dense_bytes,
        draft_tokens=settings.traffic.draft_tokens,
        batch_sequences=settings.max_num_seqs * degrees.pipeline_parallel,
        source_tokens=settings.input_tokens,
        checkpoint_blocks=int(checkpoints.are_kept(model_type, capability)),
        state_block_tokens=checkpoints.block_tokens(model_type, capability),
        cache_implementation=settings.cache_implementation,
    )

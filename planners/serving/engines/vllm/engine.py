"""vLLM: groups of layers draw blocks from one pool, of what a profiling run leaves of a share of the card."""

from __future__ import annotations

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.serving.cache.kv_formats import CacheTerms
from plimsoll.planners.serving.cache.pools import Cache
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.engines.engine import Engine
from plimsoll.planners.serving.engines.vllm.budget import profiled_budget, profiled_offset_bytes
from plimsoll.planners.serving.engines.vllm.compressed_cache import compressed_cache
from plimsoll.planners.serving.engines.vllm.kv_cache import cache_layout
from plimsoll.planners.serving.engines.vllm.startup_log import STARTUP_LOG


def _cache(model: ModelSpec, terms: CacheTerms, degrees: Degrees) -> Cache:
    context_parallel = degrees.decode_context_parallel
    return cache_layout(model, terms, tensor_parallel=degrees.tensor_parallel, context_parallel=context_parallel)


def _compressed_cache(model: ModelSpec, terms: CacheTerms, degrees: Degrees) -> Cache:
    return compressed_cache(model, terms, context_parallel=degrees.decode_context_parallel)


ENGINE = Engine(
    cache=_cache,
    compressed_cache=_compressed_cache,
    budget=profiled_budget,
    offset_bytes=profiled_offset_bytes,
    plans_work_apart=True,
    memory_note="The CUDA context, which the engine takes before it measures, is not counted in the peak.",
    startup_log=STARTUP_LOG,
    measures_apart=True,
)

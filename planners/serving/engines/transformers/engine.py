"""transformers' generate(): no pool, tensors that belong to a batch's sequences, in all that a forward pass leaves."""

from __future__ import annotations

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.serving.cache.kv_formats import CacheTerms
from plimsoll.planners.serving.cache.pools import Cache
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.engines.engine import Engine
from plimsoll.planners.serving.engines.transformers.sequence_cache import sequence_cache
from plimsoll.planners.serving.memory.budget import free_share_budget, free_share_offset_bytes

STATIC = "static"


def _cache(model: ModelSpec, terms: CacheTerms, degrees: Degrees) -> Cache:
    is_static = terms.cache_implementation == STATIC
    return sequence_cache(model, terms, tensor_parallel=degrees.tensor_parallel, is_static=is_static)


ENGINE = Engine(
    cache=_cache,
    budget=free_share_budget,
    offset_bytes=free_share_offset_bytes,
    plans_work_apart=False,
    memory_note=(
        "transformers has no block pool: the cache may grow into all memory that weights and one forward pass leave, "
        "and max_num_seqs limits the batch."
    ),
)

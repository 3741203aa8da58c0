"""How many blocks and tokens vLLM's own cache planning makes of a rank's bytes for the cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.vllm_own_code.rank import OwnRank


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCache:
    """What the engine says of its cache: tokens and bytes of a block, groups, and what the pool holds."""

    block_size: int
    block_bytes: int
    groups: int
    blocks: int
    tokens: int
    max_concurrency: float


def own_cache(rank: OwnRank, available_bytes: int) -> OwnCache:
    """Return the cache that the engine's core lays out, of what the model's own attention layers say they keep."""
    from vllm.config import set_current_vllm_config
    from vllm.v1.core.kv_cache_config_builder import get_kv_cache_config_builder
    from vllm.v1.core.kv_cache_planning import (
        _pool_bytes_per_block_from_builder,
        get_global_kv_cache_groups,
        get_kv_cache_configs,
    )
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config, get_kv_cache_capacity
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    engine = rank.config
    with set_current_vllm_config(engine):
        register_all_kvcache_specs(engine)
        specs = [get_kv_cache_spec(engine)]
        _resolve_layout(engine, specs[0].values())
        groups = get_global_kv_cache_groups(engine, specs)
        (planned,) = get_kv_cache_configs(engine, specs, [available_bytes], groups)
        scheduled = generate_scheduler_kv_cache_config([planned])
        tokens, concurrency = get_kv_cache_capacity(engine, scheduled)
        return OwnCache(
            block_size=min(group.kv_cache_spec.block_size for group in scheduled.kv_cache_groups),
            block_bytes=_pool_bytes_per_block_from_builder(get_kv_cache_config_builder(engine), engine, groups),
            groups=len(groups),
            blocks=planned.num_blocks,
            tokens=tokens,
            max_concurrency=concurrency,
        )


def _resolve_layout(engine: Any, specs: Iterable[Any]) -> None:
    """Choose the order of a page's elements as the core does, without which groups cannot be made."""
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout

    supported = [layout.name for layout in get_supported_kv_cache_layouts(get_current_attn_backends(engine))]
    resolve_kv_cache_layout(engine, [supported], specs)

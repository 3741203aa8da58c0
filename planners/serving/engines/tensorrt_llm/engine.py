"""TensorRT-LLM's PyTorch backend: pages of tokens and states share a fraction of what a forward pass leaves.

Source: tensorrt_llm/_torch/pyexecutor/_util.py, _cal_max_memory.
"""

from __future__ import annotations

from plimsoll.planners.serving.cache.token_pools import paged_cache
from plimsoll.planners.serving.engines.engine import Engine
from plimsoll.planners.serving.memory.budget import free_share_budget, free_share_offset_bytes

ENGINE = Engine(
    cache=paged_cache,
    budget=free_share_budget,
    offset_bytes=free_share_offset_bytes,
    plans_work_apart=True,
    memory_note=(
        "gpu_memory_utilization is free_gpu_memory_fraction: the cache's share of what weights and one forward pass "
        "leave. No log shows what that pass takes: it is estimated as vLLM's, and all of it is the error band."
    ),
)

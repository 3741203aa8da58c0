"""SGLang: pages of tokens, windows and states share what a fraction of the free memory leaves beside the weights."""

from __future__ import annotations

from plimsoll.planners.serving.cache.token_pools import paged_cache
from plimsoll.planners.serving.engines.engine import Engine
from plimsoll.planners.serving.engines.sglang.budget import static_budget, static_offset_bytes
from plimsoll.planners.serving.engines.sglang.startup_log import STARTUP_LOG

ENGINE = Engine(
    cache=paged_cache,
    budget=static_budget,
    offset_bytes=static_offset_bytes,
    plans_work_apart=False,
    memory_note=(
        "gpu_memory_utilization is mem_fraction_static: the share of the memory free before loading that weights and "
        "cache take. activations is all the rest."
    ),
    startup_log=STARTUP_LOG,
)

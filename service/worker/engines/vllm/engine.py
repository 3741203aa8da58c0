"""vLLM: paged keys and values, windows and latents, and kernels of its own."""

from __future__ import annotations

from plimsoll.service.worker.engines.engine import FULL_ATTENTION, LATENT, SLIDING_WINDOW, Engine

ENGINE = Engine(
    name="vllm",
    cached_kinds=frozenset({FULL_ATTENTION, SLIDING_WINDOW, LATENT}),
    has_own_kernels=True,
    note="Of fused kernels, experts, latents and packed weights stands what vLLM's own code allocates.",
)

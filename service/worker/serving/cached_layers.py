"""What each layer of a model keeps of a token, read from the layers themselves."""

from __future__ import annotations

from typing import Any

from plimsoll.service.worker.serving.cache_groups import CachedLayer
from plimsoll.service.worker.serving.deployment import Deployment

SLIDING = "sliding_attention"


def cached_layers(model: Any, deployment: Deployment) -> list[CachedLayer]:
    """Return what one rank's layers keep; call it with the model undivided."""
    layers = (layer.self_attn for layer in model.model.layers)
    return [
        _latents(attention) if keeps_latents(attention) else _keys_and_values(attention, model.config, deployment)
        for attention in layers
    ]


def keeps_latents(attention: Any) -> bool:
    """Return whether a layer keeps one compressed vector of a token."""
    return hasattr(attention, "kv_lora_rank")


def _latents(attention: Any) -> CachedLayer:
    """Return a layer's latent with the rotated key beside it, whole on every rank."""
    width = attention.kv_lora_rank + attention.qk_rope_head_dim
    return CachedLayer(parts=1, heads=1, features=width, window=None)


def _keys_and_values(attention: Any, config: Any, deployment: Deployment) -> CachedLayer:
    """Return a layer's keys and values; a rank has one head at least (vLLM, QKVParallelLinear)."""
    features = attention.head_dim
    heads = int(config.num_key_value_heads) // deployment.tensor_parallel
    return CachedLayer(parts=2, heads=max(heads, 1), features=features, window=_window(attention, config))


def _window(attention: Any, config: Any) -> int | None:
    """Return the tokens that a layer sees, itself the last; None for all."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if hasattr(attention, "sliding_window"):
        window = attention.sliding_window
    elif kinds is not None and kinds[attention.layer_idx] != SLIDING:
        return None
    return None if window is None else int(window)

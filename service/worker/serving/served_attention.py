"""The attention of transformers' layers, through an engine's cache."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from plimsoll.service.worker.serving.cache import BlockCache

SERVED_ATTENTION = "plimsoll_served"


def register_served_attention(cache: BlockCache) -> None:
    """Make transformers' layers attend through a cache; it needs no mask."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        return served_attention(cache, module.layer_idx, query, key, value, kwargs.get("scaling")), None

    ALL_ATTENTION_FUNCTIONS.register(SERVED_ATTENTION, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(SERVED_ATTENTION, lambda *_args, **_kwargs: None)


def served_attention(
    cache: BlockCache,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
) -> torch.Tensor:
    """Return attention [requests, tokens, heads, features] over all that a layer sees of the requests.

    Without a pass under way the output alone is made, as in the engine's own profiling
    pass. A prompt's later chunks see whole those before them, and one another, and
    neither sinks nor a cap on the scores is heeded: what that changes is values, not memory.
    """
    reach = cache.reach
    if reach is None:
        return torch.empty_like(query).transpose(1, 2).contiguous()
    held = cache.written(layer, (key, value), reach)
    if held.dtype is query.dtype:
        keys, values = held
        return flash(query, keys, values, is_first=reach.position == 0, scaling=scaling).transpose(1, 2).contiguous()
    # The engine's kernel reads a narrow cache as it is; here a request's part is widened at a time.
    parts = [
        flash(
            query[index : index + 1],
            *(part[None].to(query.dtype) for part in held[:, index]),
            is_first=reach.position == 0,
            scaling=scaling,
        )
        for index in range(reach.count)
    ]
    return torch.cat(parts).transpose(1, 2).contiguous()


def flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_first: bool, scaling: float | None
) -> torch.Tensor:
    """Return the flash kernel's output; fp32 has none on CUDA and takes the next kernel in line."""
    is_causal = is_first and query.shape[2] > 1
    if isinstance(query, FakeTensor) and query.dtype is not torch.float32:
        operator = torch.ops.aten._scaled_dot_product_flash_attention  # what CUDA would choose, and a CPU would not
        return operator(query, key, value, 0.0, is_causal, scale=scaling)[0]  # type: ignore[no-any-return]
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=is_causal, scale=scaling, enable_gqa=True
    )

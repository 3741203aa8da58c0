"""An engine's cache of keys and values, in blocks, and the attention that writes and reads it.

A request's blocks follow one another here, so that its keys are a view and no
kernel of the engine's is needed to gather them.

Source: vllm/v1/attention/backends/flash_attn.py, get_kv_cache_shape: keys and values, blocks, tokens of
a block, heads, features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from service.worker.serving_run.deployment import Deployment

CACHE_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}
SERVED_ATTENTION = "plimsoll_served"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Which requests a pass serves: `count` of them from the request `first` on, whose next token is at `position`."""

    first: int
    count: int
    position: int


class BlockCache:
    """All layers' blocks on one rank, and the requests that the pass under way serves."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.layers: list[torch.Tensor] = []
        self.reach: Reach | None = None

    def allocate(self, device_type: str) -> None:
        """Allocate every layer's blocks, as the engine does once it knows how many there are."""
        deployment = self._deployment
        shape = (2, deployment.blocks, deployment.block_size, deployment.key_value_heads, deployment.head_dim)
        dtype = CACHE_DTYPES[deployment.kv_cache]
        self.layers = [
            torch.zeros(shape, dtype=dtype, device=device_type)
            for _ in range(int(deployment.config["num_hidden_layers"]))
        ]

    def written(self, layer: int, key: torch.Tensor, value: torch.Tensor, reach: Reach) -> torch.Tensor:
        """Write a pass's keys and values [requests, heads, tokens, features], and return all of the requests' so far.

        Returns views [2, requests, heads, tokens, features] of the blocks.
        """
        deployment = self._deployment
        each = deployment.blocks_per_request
        blocks = self.layers[layer][:, reach.first * each : (reach.first + reach.count) * each]
        slots = blocks.view(2, reach.count, each * deployment.block_size, *blocks.shape[-2:]).transpose(2, 3)
        end = reach.position + key.shape[2]
        slots[0, :, :, reach.position : end].copy_(key)
        slots[1, :, :, reach.position : end].copy_(value)
        return slots[:, :, :, :end]


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
    """Return attention [requests, tokens, heads, features] over all that the cache holds of the requests.

    Without a cache the output alone is made, as in the engine's own profiling pass.
    A prompt's later chunks see whole those before them, and one another: what that changes is
    values, not memory.
    """
    reach = cache.reach
    if reach is None:
        return torch.empty_like(query).transpose(1, 2).contiguous()
    held = cache.written(layer, key, value, reach)
    if held.dtype is query.dtype:
        keys, values = held
        return _flash(query, keys, values, is_first=reach.position == 0, scaling=scaling).transpose(1, 2).contiguous()
    # The engine's kernel reads a narrow cache as it is; here a request's part is widened at a time.
    parts = [
        _flash(
            query[index : index + 1],
            *(part[None].to(query.dtype) for part in held[:, index]),
            is_first=reach.position == 0,
            scaling=scaling,
        )
        for index in range(reach.count)
    ]
    return torch.cat(parts).transpose(1, 2).contiguous()


def _flash(
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

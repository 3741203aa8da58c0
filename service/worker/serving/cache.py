"""An engine's cache in blocks: which a request has, and where a pass writes its tokens.

A request's blocks follow one another here, so that its keys are a view and no
kernel of the engine's is needed to gather them. In a layer with a window it has
blocks for the window and one pass alone, at whose end further tokens are written.

Source: vllm/v1/attention/backends/flash_attn.py, get_kv_cache_shape: keys and values, blocks, tokens of
a block, heads, features; vllm/v1/kv_cache_interface.py, SlidingWindowSpec.max_memory_usage_bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.service.worker.serving.cache_groups import CachedLayer, Place, layer_groups, places
from plimsoll.service.worker.serving.deployment import Deployment

CACHE_DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Which requests a pass serves: `count` of them from the request `first` on, whose next token is at `position`."""

    first: int
    count: int
    position: int


class Allocated(Protocol):
    """What is allocated with the cache."""

    def allocate(self, device_type: str) -> None:
        """Allocate it on a device."""


class BlockCache:
    """One rank's blocks, and the requests that the pass under way serves; without `reach` it is the profiling pass."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.tensors: list[torch.Tensor] = []
        self.reach: Reach | None = None
        self.context: Allocated | None = None
        self._layers: Sequence[CachedLayer] = ()
        self._places: dict[int, Place] = {}
        self._first_blocks: list[int] = []

    def arrange(self, layers: Sequence[CachedLayer]) -> None:
        """Group all layers of the model, of which this rank's stage has some.

        Raises `InvalidQuestion` where the batch needs more blocks than the plan has.
        """
        deployment = self.deployment
        self._layers = layers
        groups = layer_groups(layers)
        stage = range(len(layers)) if deployment.stage_layers is None else deployment.stage_layers
        self._places = places(groups, stage)
        self._first_blocks = [0]
        for group in groups:
            taken = deployment.batch * self._request_blocks(layers[group[0]])
            self._first_blocks.append(self._first_blocks[-1] + taken)
        if self._first_blocks[-1] > deployment.blocks:
            raise InvalidQuestion(
                f"{deployment.batch} requests at their end fill {self._first_blocks[-1]} blocks, and the plan has "
                f"{deployment.blocks}."
            )

    def allocate(self, device_type: str) -> None:
        """Allocate the blocks of every place, as the engine does once it knows how many there are."""
        deployment, dtype = self.deployment, CACHE_DTYPES[self.deployment.kv_cache]
        of_place = {place.tensor: self._layers[layer] for layer, place in self._places.items()}
        self.tensors = [
            torch.zeros(
                (layer.parts, deployment.blocks, deployment.block_size, layer.heads, layer.features),
                dtype=dtype,
                device=device_type,
            )
            for layer in of_place.values()
        ]

    def allocate_context(self, device_type: str) -> None:
        """Allocate what a layer's attention keeps beside the blocks, where it keeps anything."""
        if self.context is not None:
            self.context.allocate(device_type)

    def written(self, layer: int, parts: Sequence[torch.Tensor], reach: Reach) -> torch.Tensor:
        """Write a pass's [requests, heads, tokens, features] of each part, and return what a layer sees of them.

        Returns views [parts, requests, heads, tokens, features] of the blocks: all tokens
        so far, or the window and this pass.
        """
        kept, tokens = self._layers[layer], parts[0].shape[2]
        slots = self._slots(layer, reach)
        start = min(reach.position, slots.shape[3] - tokens)
        for slot, part in zip(slots, parts, strict=True):
            slot[:, :, start : start + tokens].copy_(part)
        end = start + tokens
        seen = end if kept.window is None else min(end, kept.window - 1 + tokens)
        return slots[:, :, :, end - seen : end]

    def _slots(self, layer: int, reach: Reach) -> torch.Tensor:
        """Return the requests' token slots of a layer, [parts, requests, heads, slots, features]."""
        kept, place = self._layers[layer], self._places[layer]
        each = self._request_blocks(kept)
        first = self._first_blocks[place.group] + reach.first * each
        blocks = self.tensors[place.tensor][:, first : first + reach.count * each]
        return blocks.view(
            kept.parts, reach.count, each * self.deployment.block_size, kept.heads, kept.features
        ).transpose(2, 3)

    def _request_blocks(self, layer: CachedLayer) -> int:
        """Return the blocks that one request fills at its end in a layer's group.

        A window may begin inside a block, so one block more.
        """
        deployment = self.deployment
        whole = -(-deployment.sequence_tokens // deployment.block_size)
        if layer.window is None:
            return whole
        kept = layer.window - 1 + deployment.pass_tokens
        return min(whole, -(-kept // deployment.block_size) + 1)

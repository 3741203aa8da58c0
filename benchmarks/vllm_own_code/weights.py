"""What a rank of vLLM's own model holds once it is loaded, by kind, to the byte."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensor

from benchmarks.vllm_own_code.rank import OwnRank


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """Bytes of storages: of parameters, of buffers beside them, and of tensors kept otherwise."""

    parameters: int
    buffers: int
    others: int

    @property
    def total(self) -> int:
        """Return them together."""
        return self.parameters + self.buffers + self.others


def held_bytes(rank: OwnRank) -> HeldBytes:
    """Return what is alive of the rank's tensors, each storage once, whoever holds it."""
    gc.collect()
    seen: set[int] = set()
    model = rank.model
    alive = [found for found in gc.get_objects() if isinstance(found, FakeTensor) and found.fake_mode is rank.fakes]
    return HeldBytes(
        parameters=_new_bytes(list(model.parameters()), seen),
        buffers=_new_bytes(list(model.buffers()), seen),
        others=_new_bytes(alive, seen),
    )


def _new_bytes(tensors: list[torch.Tensor], seen: set[int]) -> int:
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if tensor.device.type != "meta" and storage._cdata not in seen:
            seen.add(storage._cdata)
            total += storage.nbytes()
    return total

"""In whose form a quantized checkpoint is written: that of bitsandbytes or that of compressed-tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from plimsoll.planners.quantization.planning import SchemeSettings
from plimsoll.service.worker.quantization.checkpoints.bitsandbytes import (
    BITSANDBYTES_SCHEMES,
    BitsandbytesCheckpoint,
)
from plimsoll.service.worker.quantization.checkpoints.compressed import CompressedCheckpoint
from plimsoll.service.worker.quantization.checkpoints.shard_file import PlannedTensor
from plimsoll.service.worker.quantization.checkpoints.sources import SourceTensor, dtype_name
from plimsoll.service.worker.quantization.schemes.quantized import QuantizedTensor


class CheckpointFormat(Protocol):
    """What stands in a checkpoint for quantized tensors, and in its config."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a loader does otherwise than it was measured."""
        ...

    def planned_parts(self, tensor: SourceTensor) -> tuple[PlannedTensor, ...]:
        """Return the tensors that stand for a quantized one."""
        ...

    def stored_parts(self, tensor: SourceTensor, quantized: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return the same by name, filled."""
        ...

    def quantization_config(self, tensors: Sequence[SourceTensor], *, dtype: str) -> dict[str, Any]:
        """Return the config's `quantization_config`; `dtype` is that of the weights."""
        ...


def checkpoint_format(settings: SchemeSettings) -> CheckpointFormat:
    """Return the form of a scheme's checkpoints; every scheme that settings can name has one."""
    if settings.scheme in BITSANDBYTES_SCHEMES:
        return BitsandbytesCheckpoint(settings)
    return CompressedCheckpoint(settings)


def quantized_config(
    config: Mapping[str, Any], checkpoint: CheckpointFormat, tensors: Sequence[SourceTensor]
) -> dict[str, Any]:
    """Return a `config.json` with its `quantization_config`, and with the dtype of the weights where it names none."""
    dtype = dtype_name(next(tensor.dtype for tensor in tensors if tensor.reason is None))
    has_dtype = config.get("dtype") is not None or config.get("torch_dtype") is not None
    return {
        **config,
        **({} if has_dtype else {"dtype": dtype}),
        "quantization_config": checkpoint.quantization_config(tensors, dtype=dtype),
    }

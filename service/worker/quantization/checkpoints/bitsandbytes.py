"""A quantized checkpoint as transformers saves and loads one with bitsandbytes.

Source: bitsandbytes 0.50.2, QuantState.as_dict and Linear8bitLt._save_to_state_dict;
transformers 5.23, BitsAndBytesConfig and quantizers/quantizer_bnb_*.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from plimsoll.planners.architecture import Part
from plimsoll.planners.formats.storage import NESTED_BLOCK_SIZE
from plimsoll.planners.quantization.planning import SchemeSettings
from plimsoll.service.worker.quantization.checkpoints.shard_file import PlannedTensor
from plimsoll.service.worker.quantization.checkpoints.sources import SourceTensor, dtype_name
from plimsoll.service.worker.quantization.schemes.double_quantization import dynamic_map
from plimsoll.service.worker.quantization.schemes.four_bit_codes import CODE_BOOKS
from plimsoll.service.worker.quantization.schemes.quantized import QuantizedTensor

INT8_SCHEME = "int8-channel"
BITSANDBYTES_SCHEMES = (*CODE_BOOKS, INT8_SCHEME)
# Linear8bitLt's weight_format for row-major weights.
ROW_MAJOR = 0
# Features with activations beyond it are multiplied in 16 bits (Dettmers et al. 2022, section 3.2).
OUTLIER_THRESHOLD = 6.0
# BitsAndBytesConfig's defaults, which LLM.int8 does not look at.
UNUSED_QUANT_TYPE, UNUSED_COMPUTE_DTYPE = "fp4", "float32"
# Heads and embeddings are what transformers leaves alone of itself.
LEFT_ALONE_BY_ITSELF = (Part.HEAD, Part.EMBEDDING)
TIED_HEAD = "lm_head"
CPU = torch.device("cpu")


class BitsandbytesCheckpoint:
    """The tensors and the config of a checkpoint in NF4, FP4 or LLM.int8."""

    def __init__(self, settings: SchemeSettings) -> None:
        """Take settings whose scheme is one of `BITSANDBYTES_SCHEMES`."""
        self._settings = settings

    @property
    def notes(self) -> tuple[str, ...]:
        """Return nothing: what was measured is what transformers computes with."""
        return ()

    def planned_parts(self, tensor: SourceTensor) -> tuple[PlannedTensor, ...]:
        """Return the tensors that stand for a quantized one."""
        name, settings = tensor.name, self._settings
        rows, columns = tensor.shape
        if settings.scheme == INT8_SCHEME:
            return (
                PlannedTensor(name=name, dtype="I8", shape=tensor.shape),
                PlannedTensor(name=_beside(name, "SCB"), dtype="F32", shape=(rows,)),
                PlannedTensor(name=_beside(name, "weight_format"), dtype="U8", shape=()),
            )
        blocks = -(-rows * columns // _block_size(settings))
        nested = -(-blocks // NESTED_BLOCK_SIZE)
        absmax_dtype = "U8" if settings.double_quantization else "F32"
        parts = [
            PlannedTensor(name=name, dtype="U8", shape=(-(-rows * columns // 2), 1)),
            PlannedTensor(name=f"{name}.absmax", dtype=absmax_dtype, shape=(blocks,)),
            PlannedTensor(name=f"{name}.quant_map", dtype="F32", shape=(16,)),
            PlannedTensor(name=_state_name(name, settings), dtype="U8", shape=None),
        ]
        if settings.double_quantization:
            parts += [
                PlannedTensor(name=f"{name}.nested_absmax", dtype="F32", shape=(nested,)),
                PlannedTensor(name=f"{name}.nested_quant_map", dtype="F32", shape=(256,)),
            ]
        return tuple(parts)

    def stored_parts(self, tensor: SourceTensor, quantized: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return the same by name, filled."""
        name, parts, settings = tensor.name, quantized.parts, self._settings
        if settings.scheme == INT8_SCHEME:
            return {
                name: parts["codes"],
                _beside(name, "SCB"): parts["absmax"],
                _beside(name, "weight_format"): torch.tensor(ROW_MAJOR, dtype=torch.uint8),
            }
        stored = {
            name: parts["packed"],
            f"{name}.absmax": parts["absmax"],
            f"{name}.quant_map": torch.tensor(CODE_BOOKS[settings.scheme].values, dtype=torch.float32),
            _state_name(name, settings): _state(tensor, quantized, settings),
        }
        if settings.double_quantization:
            stored[f"{name}.nested_absmax"] = parts["nested_absmax"]
            stored[f"{name}.nested_quant_map"] = dynamic_map(CPU)
        return stored

    def quantization_config(self, tensors: Sequence[SourceTensor], *, dtype: str) -> dict[str, Any]:
        """Return what `config.json` says of it; the compute dtype is `dtype`, that of the weights."""
        settings = self._settings
        is_int8 = settings.scheme == INT8_SCHEME
        return {
            "quant_method": "bitsandbytes",
            "load_in_8bit": is_int8,
            "load_in_4bit": not is_int8,
            "_load_in_8bit": is_int8,
            "_load_in_4bit": not is_int8,
            "llm_int8_threshold": OUTLIER_THRESHOLD,
            "llm_int8_skip_modules": _modules_left_alone(tensors),
            "llm_int8_enable_fp32_cpu_offload": False,
            "llm_int8_has_fp16_weight": False,
            "bnb_4bit_quant_type": UNUSED_QUANT_TYPE if is_int8 else settings.scheme,
            "bnb_4bit_use_double_quant": settings.double_quantization,
            "bnb_4bit_compute_dtype": UNUSED_COMPUTE_DTYPE if is_int8 else dtype,
            "bnb_4bit_quant_storage": "uint8",
        }


def _modules_left_alone(tensors: Sequence[SourceTensor]) -> list[str] | None:
    """Return the linear modules that stay as they are, or None where transformers knows them of itself."""
    left = [tensor for tensor in tensors if tensor.reason and tensor.weight is not None and tensor.weight.is_linear]
    if all(tensor.weight is not None and tensor.weight.part in LEFT_ALONE_BY_ITSELF for tensor in left):
        return None
    # A list takes the place of the modules that transformers knows, the tied head among them.
    return list(dict.fromkeys([*(tensor.name.removesuffix(".weight") for tensor in left), TIED_HEAD]))


def _state(tensor: SourceTensor, quantized: QuantizedTensor, settings: SchemeSettings) -> torch.Tensor:
    """Return bitsandbytes' quantization state, with its keys in its order."""
    state: dict[str, Any] = {
        "quant_type": settings.scheme,
        "blocksize": _block_size(settings),
        "dtype": dtype_name(tensor.dtype),
        "shape": list(tensor.shape),
    }
    if settings.double_quantization:
        state["nested_blocksize"] = NESTED_BLOCK_SIZE
        state["nested_dtype"] = "float32"
        state["nested_offset"] = quantized.parts["nested_offset"].item()
    return torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)


def _state_name(name: str, settings: SchemeSettings) -> str:
    return f"{name}.quant_state.bitsandbytes__{settings.scheme}"


def _beside(name: str, part: str) -> str:
    return f"{name.removesuffix('.weight')}.{part}"


def _block_size(settings: SchemeSettings) -> int:
    if settings.block_size is None:
        raise ValueError(f"{settings.scheme} needs a block size.")
    return settings.block_size

"""How a matrix is held in each format, by the tensors that vLLM keeps once it has loaded it.

Source: vllm/model_executor/layers/quantization: fp8.py (one fp32 scale a matrix),
compressed_tensors/schemes/compressed_tensors_w8a8_int8.py (one fp32 scale an output channel), awq_marlin.py (words of
eight 4-bit numbers, a 16-bit scale and eight zeros a word for each group of 128 inputs), bitsandbytes.py (blocks of 64
with an fp32 scale, two numbers a byte), mxfp4.py (a byte's scale for 32 inputs; lengths padded for the kernels).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from plimsoll.service.worker.serving.weight_names import FP8, INT4, INT8, MXFP4, NF4

NARROW_DTYPES = {FP8: torch.float8_e4m3fn, INT8: torch.int8}
NUMBERS_OF_A_WORD, NUMBERS_OF_A_BYTE = 8, 2
GROUP_INPUTS, BLOCK_ELEMENTS, MXFP4_INPUTS = 128, 64, 32
CODEBOOK_ENTRIES = 16
# Of experts in mxfp4, as `create_weights` pads them: the length that ranks divide, and the hidden one.
PADDED_LENGTH, PADDED_HIDDEN = 128, 256


def stored_matrix(
    name: str, shape: tuple[int, ...], *, like: torch.Tensor, divided_dim: int | None = None
) -> dict[str, torch.Tensor]:
    """Return the tensors of a matrix [..., outputs, inputs] in a format, empty, on the device of `like`.

    `divided_dim` says which of the last two an expert's length is.
    """
    if name in NARROW_DTYPES:
        scales = (*shape[:-1], 1) if name == INT8 else (*shape[:-2], 1, 1)
        return _empty(like, {"weight": (shape, NARROW_DTYPES[name]), "weight_scale": (scales, torch.float32)})
    if name == INT4:
        return _empty(like, _int4(shape, like.dtype))
    if name == NF4:
        return _empty(like, _nf4(shape))
    if name == MXFP4:
        return _empty(like, _mxfp4(_padded(shape, divided_dim)))
    return _empty(like, {"weight": (shape, like.dtype)})


def widened(parts: Mapping[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Return a matrix of a wide or narrow format in the one it is computed in."""
    weight = parts["weight"].to(dtype)
    return weight * parts["weight_scale"].to(dtype) if "weight_scale" in parts else weight


def _int4(shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    *experts, outputs, inputs = shape
    groups = -(-inputs // GROUP_INPUTS)
    words = outputs // NUMBERS_OF_A_WORD
    return {
        "weight": ((*experts, inputs, words), torch.int32),
        "scales": ((*experts, groups, outputs), dtype),
        "zeros": ((*experts, groups, words), torch.int32),
    }


def _nf4(shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    *experts, outputs, inputs = shape
    elements = outputs * inputs
    return {
        "weight": ((*experts, -(-elements // NUMBERS_OF_A_BYTE), 1), torch.uint8),
        "absmax": ((*experts, -(-elements // BLOCK_ELEMENTS)), torch.float32),
        "quant_map": ((CODEBOOK_ENTRIES,), torch.float32),
    }


def _mxfp4(shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    *front, inputs = shape
    return {
        "weight": ((*front, inputs // NUMBERS_OF_A_BYTE), torch.uint8),
        "scales": ((*front, inputs // MXFP4_INPUTS), torch.uint8),
    }


def _padded(shape: tuple[int, ...], divided_dim: int | None) -> tuple[int, ...]:
    *experts, outputs, inputs = shape
    if divided_dim is None:
        return shape
    if divided_dim == 0:  # gate and up, each padded
        return (*experts, 2 * _up_to(outputs // 2, PADDED_LENGTH), _up_to(inputs, PADDED_HIDDEN))
    return (*experts, _up_to(outputs, PADDED_HIDDEN), _up_to(inputs, PADDED_LENGTH))


def _up_to(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def _empty(like: torch.Tensor, tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, torch.Tensor]:
    return {name: torch.empty(shape, dtype=dtype, device=like.device) for name, (shape, dtype) in tensors.items()}

"""Which quantizer makes which scheme."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from planners.quantization import SchemeSettings
from service.worker.quantization.block_scaled import BlockScaled
from service.worker.quantization.four_bit_codes import CODE_BOOKS
from service.worker.quantization.group_scaled import GroupCodes, GroupScaled, Int4Codes, Int8Codes, Mxfp4Codes
from service.worker.quantization.quantized import Quantizer
from service.worker.quantization.row_scaled import RowScaled, RowScaledFloat
from service.worker.quantization.tensor_scaled import TensorScaled

_GROUP_CODES: Mapping[str, Callable[[], GroupCodes]] = {
    "int8-group": Int8Codes,
    "int4": Int4Codes,
    "mxfp4": Mxfp4Codes,
}
_TENSOR_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def quantizer(settings: SchemeSettings) -> Quantizer:
    """Return the quantizer of a scheme; every scheme that settings can name has one."""
    scheme = settings.scheme
    if scheme in _TENSOR_DTYPES:
        return TensorScaled(_TENSOR_DTYPES[scheme])
    if scheme == "int8-channel":
        return RowScaled()
    if scheme == "fp8-channel":
        return RowScaledFloat()
    if settings.block_size is None:
        raise ValueError(f"{scheme} needs a block size.")
    if scheme in CODE_BOOKS:
        return BlockScaled(
            CODE_BOOKS[scheme], block_size=settings.block_size, double_quantization=settings.double_quantization
        )
    return GroupScaled(_GROUP_CODES[scheme](), group_size=settings.block_size)

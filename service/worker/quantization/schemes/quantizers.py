"""Which quantizer makes which scheme."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from plimsoll.planners.quantization.planning import SchemeSettings
from plimsoll.service.worker.quantization.schemes.block_scaled import BlockScaled
from plimsoll.service.worker.quantization.schemes.four_bit_codes import CODE_BOOKS
from plimsoll.service.worker.quantization.schemes.group_codes import GroupCodes, Int4Codes, Int8Codes, Mxfp4Codes
from plimsoll.service.worker.quantization.schemes.group_scaled import GroupScaled
from plimsoll.service.worker.quantization.schemes.quantized import Quantizer
from plimsoll.service.worker.quantization.schemes.row_scaled import E4m3Rows, LlmInt8Rows, RowCodes, RowScaled
from plimsoll.service.worker.quantization.schemes.tensor_scaled import TensorScaled

_GROUP_CODES: Mapping[str, Callable[[], GroupCodes]] = {
    "int8-group": Int8Codes,
    "int4": Int4Codes,
    "mxfp4": Mxfp4Codes,
}
_ROW_CODES: Mapping[str, Callable[[], RowCodes]] = {"int8-channel": LlmInt8Rows, "fp8-channel": E4m3Rows}
_TENSOR_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def quantizer(settings: SchemeSettings) -> Quantizer:
    """Return the quantizer of a scheme; every scheme that settings can name has one."""
    scheme = settings.scheme
    if scheme in _TENSOR_DTYPES:
        return TensorScaled(_TENSOR_DTYPES[scheme])
    if scheme in _ROW_CODES:
        return RowScaled(_ROW_CODES[scheme]())
    if settings.block_size is None:
        raise ValueError(f"{scheme} needs a block size.")
    if scheme in CODE_BOOKS:
        return BlockScaled(
            CODE_BOOKS[scheme], block_size=settings.block_size, double_quantization=settings.double_quantization
        )
    return GroupScaled(_GROUP_CODES[scheme](), group_size=settings.block_size)

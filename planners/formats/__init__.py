"""Number formats, and the exact bytes of a tensor stored in each of them."""

from plimsoll.planners.formats.number_format import FORMATS, NumberFormat, ScaleFormat, number_format
from plimsoll.planners.formats.storage import (
    STORAGE_SCHEMES,
    StorageScheme,
    bytes_per_parameter,
    storage_scheme,
    stored_bytes,
    tensor_bytes,
)

__all__ = [
    "FORMATS",
    "STORAGE_SCHEMES",
    "NumberFormat",
    "ScaleFormat",
    "StorageScheme",
    "bytes_per_parameter",
    "number_format",
    "storage_scheme",
    "stored_bytes",
    "tensor_bytes",
]

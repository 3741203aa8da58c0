"""What a compressed cache (DeepSeek-V4) keeps of a token or of an entry that stands for several, in packed fp8."""

from __future__ import annotations

from plimsoll.planners.architecture import KvKind, ModelSpec
from plimsoll.planners.ground.errors import NotYetAvailable

# The tokens of a block of entries, which the sparse kernel asks for (vllm/v1/attention/backends/mla/sparse_swa.py,
# get_preferred_block_size).
BLOCK_TOKENS = 256
# fp8_ds_mla: 448 elements of 512 in 8 bits, 64 rotary ones in 16, and 8 bytes of scales.
ROW_WIDTH, ROW_BYTES = 512, 584
# An index key in fp8 has a float32 scale for each 128 elements.
INDEX_SCALE_ELEMENTS, INDEX_SCALE_BYTES = 128, 4


def is_compressed(model: ModelSpec) -> bool:
    """Return whether a layer caches entries that stand for several tokens."""
    return any(block.kv is not None and block.kv.kind is KvKind.COMPRESSED for block in model.layers)


def row_bytes(width: int) -> int:
    """Return what one vector of a window or one entry takes."""
    if width != ROW_WIDTH:
        raise NotYetAvailable(f"The packed fp8 form of a row of {width} elements is not known.", pointer="/model")
    return ROW_BYTES


def index_row_bytes(width: int) -> int:
    """Return what the index keeps of one entry."""
    return width + -(-width // INDEX_SCALE_ELEMENTS) * INDEX_SCALE_BYTES

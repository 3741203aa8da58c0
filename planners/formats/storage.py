"""How weights are stored: elements, scales, and the exact bytes of a tensor.

A scheme's code book is a constant of the scheme and not counted; nor are the
few bytes of a checkpoint's header.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from plimsoll.planners.formats.number_format import number_format
from plimsoll.planners.ground.errors import InvalidQuestion, UnknownName

# Dettmers et al. 2023 (arXiv:2305.14314), section 3: the 32-bit scales are less
# their mean, quantized to 8 bits in blocks of 256, with one 32-bit scale each.
NESTED_BLOCK_SIZE = 256
NESTED_SCALE_BITS = 8
NESTED_OFFSET_BYTES = 4
# What bitsandbytes 0.50.2 takes (functional.quantize_4bit).
BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)


class ScaledOver(StrEnum):
    """What shares one scale.

    `block` cuts the tensor as one long line, `group` cuts each row (of a matrix
    [output features, input features]) by itself, `tile` cuts it into squares.
    """

    NOTHING = "nothing"
    TENSOR = "tensor"
    ROW = "row"
    BLOCK = "block"
    GROUP = "group"
    TILE = "tile"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageScheme:
    """A way to store weights.

    `block_size` is the default number of elements under one scale of
    `scale_bits` (and, where there are any, `zero_point_bits`), or a tile's edge;
    `tensor_scale_bytes` stand once a tensor, `input_bytes` and `output_bytes` once
    an input or output feature (of each matrix where a tensor stacks several).
    """

    name: str
    format: str
    scaled_over: ScaledOver = ScaledOver.NOTHING
    scale_bits: int = 0
    zero_point_bits: int = 0
    tensor_scale_bytes: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    block_size: int | None = None
    has_fixed_block_size: bool = False
    can_nest_scales: bool = False

    @property
    def element_bits(self) -> int:
        """Return the bits an element occupies in memory."""
        return number_format(self.format).stored_bits

    def resolved_block_size(self, block_size: int | None) -> int | None:
        """Return the block size to use: the one asked for, or the scheme's own.

        It is None for a scheme without blocks. Raises `InvalidQuestion` where
        the scheme cannot use the one asked for.
        """
        if self.block_size is None or block_size is None or block_size == self.block_size:
            return self.block_size
        if self.has_fixed_block_size:
            raise InvalidQuestion(f"{self.name} has blocks of {self.block_size} by definition.", pointer="/block_size")
        if block_size not in BLOCK_SIZES:
            choices = ", ".join(map(str, BLOCK_SIZES))
            raise InvalidQuestion(f"Blocks of {block_size} are not possible; use {choices}.", pointer="/block_size")
        return block_size


def _plain(name: str) -> StorageScheme:
    return StorageScheme(name=name, format=name)


_ALL = (
    _plain("fp32"),
    _plain("tf32"),
    _plain("bf16"),
    _plain("fp16"),
    StorageScheme(name="fp8", format="fp8-e4m3", scaled_over=ScaledOver.TENSOR, tensor_scale_bytes=4),
    StorageScheme(name="fp8-channel", format="fp8-e4m3", scaled_over=ScaledOver.ROW, scale_bits=32),
    StorageScheme(name="int8", format="int8", scaled_over=ScaledOver.TENSOR, tensor_scale_bytes=4),
    StorageScheme(name="int8-channel", format="int8", scaled_over=ScaledOver.ROW, scale_bits=32),
    StorageScheme(name="int8-group", format="int8", scaled_over=ScaledOver.GROUP, scale_bits=32, block_size=128),
    StorageScheme(
        name="int4", format="int4", scaled_over=ScaledOver.GROUP, scale_bits=16, zero_point_bits=4, block_size=128
    ),
    StorageScheme(
        name="nf4", format="nf4", scaled_over=ScaledOver.BLOCK, scale_bits=32, block_size=64, can_nest_scales=True
    ),
    StorageScheme(
        name="fp4", format="fp4", scaled_over=ScaledOver.BLOCK, scale_bits=32, block_size=64, can_nest_scales=True
    ),
    StorageScheme(
        name="mxfp4",
        format="mxfp4",
        scaled_over=ScaledOver.GROUP,
        scale_bits=8,
        block_size=32,
        has_fixed_block_size=True,
    ),
    StorageScheme(
        name="nvfp4",
        format="nvfp4",
        scaled_over=ScaledOver.GROUP,
        scale_bits=8,
        tensor_scale_bytes=4,
        block_size=16,
        has_fixed_block_size=True,
    ),
)

STORAGE_SCHEMES: Mapping[str, StorageScheme] = MappingProxyType({scheme.name: scheme for scheme in _ALL})


def storage_scheme(name: str) -> StorageScheme:
    """Return the scheme of that name; raises `UnknownName` and lists the near ones."""
    if name not in STORAGE_SCHEMES:
        raise UnknownName(name, STORAGE_SCHEMES, pointer="/scheme")
    return STORAGE_SCHEMES[name]


def tensor_bytes(
    scheme: str, shape: tuple[int, ...], *, double_quantization: bool = False, block_size: int | None = None
) -> int:
    """Return the exact bytes of one tensor, its scales included.

    `shape` is [output features, input features] for a matrix; rows matter to
    schemes with a scale for each row or group. Only NF4 and FP4 can quantize
    their scales again (`double_quantization`); raises `InvalidQuestion` for the
    others.
    """
    storage = storage_scheme(scheme)
    return stored_bytes(storage, shape, double_quantization=double_quantization, block_size=block_size)


def stored_bytes(
    storage: StorageScheme,
    shape: tuple[int, ...],
    *,
    double_quantization: bool = False,
    block_size: int | None = None,
) -> int:
    """Return the exact bytes of one tensor as `storage` has it; arguments and errors as for `tensor_bytes`."""
    elements = math.prod(shape)
    if double_quantization and not storage.can_nest_scales:
        raise InvalidQuestion(f"{storage.name} has no double quantization.", pointer="/double_quantization")
    if elements == 0:
        return 0
    num_scales = _num_scales(storage, shape, storage.resolved_block_size(block_size))
    if double_quantization:
        scale_bytes = (
            _ceil_bytes(num_scales * NESTED_SCALE_BITS)
            + _ceil_bytes(-(-num_scales // NESTED_BLOCK_SIZE) * storage.scale_bits)
            + NESTED_OFFSET_BYTES
        )
    else:
        scale_bytes = _ceil_bytes(num_scales * storage.scale_bits)
    zero_point_bytes = _ceil_bytes(num_scales * storage.zero_point_bits)
    beside = storage.tensor_scale_bytes + _feature_bytes(storage, shape)
    return _ceil_bytes(elements * storage.element_bits) + scale_bytes + zero_point_bytes + beside


def bytes_per_parameter(scheme: str, *, double_quantization: bool = False, block_size: int | None = None) -> float:
    """Return the bytes of one parameter of a large tensor, for rules of thumb.

    Scales that stand once a tensor or once a row vanish in a large tensor and
    are left out; those of blocks are counted.
    """
    storage = storage_scheme(scheme)
    if double_quantization and not storage.can_nest_scales:
        raise InvalidQuestion(f"{scheme} has no double quantization.", pointer="/double_quantization")
    block = storage.resolved_block_size(block_size)
    bits = float(storage.element_bits)
    if block is not None:
        scale_bits = (
            NESTED_SCALE_BITS + storage.scale_bits / NESTED_BLOCK_SIZE if double_quantization else storage.scale_bits
        )
        bits += (scale_bits + storage.zero_point_bits) / block
    return bits / 8


def _num_scales(storage: StorageScheme, shape: tuple[int, ...], block_size: int | None) -> int:
    elements = math.prod(shape)
    columns = shape[-1] if shape else 1
    rows = elements // columns
    if storage.scaled_over is ScaledOver.ROW:
        return rows
    if block_size is None:
        return 0
    if storage.scaled_over is ScaledOver.GROUP:
        return rows * -(-columns // block_size)
    if storage.scaled_over is ScaledOver.TILE:
        height = shape[-2] if len(shape) > 1 else 1
        return rows // height * -(-height // block_size) * -(-columns // block_size)
    return -(-elements // block_size)


def _feature_bytes(storage: StorageScheme, shape: tuple[int, ...]) -> int:
    """Return what stands once an input or output feature; a line has one output feature."""
    height = shape[-2] if len(shape) > 1 else 1
    columns = shape[-1] if shape else 1
    matrices = math.prod(shape) // (height * columns)
    return matrices * (columns * storage.input_bytes + height * storage.output_bytes)


def _ceil_bytes(bits: int) -> int:
    return -(-bits // 8)

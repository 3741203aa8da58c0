"""Code books of sixteen values: the nearest code of each number, and two codes to a byte.

Source of values, order and thresholds: bitsandbytes 0.50.2 (get_4bit_type and
the kernels of backends/default/ops.py) for NF4 and FP4; the OCP Microscaling
specification 1.0 for E2M1.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch

NF4_VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
# Sign, two bits of exponent and one of fraction, in the order of their bits.
FP4_MAGNITUDES = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

CODES = 16
# Sign, eight bits of exponent and three of fraction: no two thresholds share them, and a table fits the first cache.
TOP_BITS = 12
LOW_BITS = 32 - TOP_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBook:
    """Sixteen values, ranked from the least to the greatest.

    `codes` are the stored codes by rank. A number's rank is how many of the 15
    `thresholds` it exceeds.
    """

    name: str
    values: tuple[float, ...]
    codes: tuple[int, ...]
    thresholds: tuple[float, ...]

    def encode_pairs(self, scaled: torch.Tensor) -> torch.Tensor:
        """Return the codes of a line of fp32 numbers, two a byte, the first in the high half.

        `scaled` must be contiguous, even in length and free of NaN.
        """
        table = _encoding_table(self, scaled.device)
        # On a little-endian machine the first of two ranks is the low byte of
        # their word: (first << 4 | second) is the low byte of w << 4 | w >> 8.
        words = _ranks(scaled, table.offsets).view(torch.int16)
        pairs = torch.bitwise_left_shift(words, 4).bitwise_or_(torch.bitwise_right_shift(words, 8)).to(torch.uint8)
        if table.codes_of_pair is None:
            return pairs
        return table.codes_of_pair.index_select(0, pairs.to(torch.int32))

    def decode_pairs(self, pairs: torch.Tensor) -> torch.Tensor:
        """Return the fp32 values of bytes of two codes each, twice as many as bytes."""
        both = _decoding_table(self, pairs.device).index_select(0, pairs.to(torch.int32))
        return both.view(torch.float32)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the thresholds in fp32 and the codes by rank in uint8."""
        return torch.tensor(self.thresholds, dtype=torch.float32), torch.tensor(self.codes, dtype=torch.uint8)

    def value_pairs(self, device: torch.device) -> torch.Tensor:
        """Return the two fp32 values of each of 256 bytes, as one line."""
        return _decoding_table(self, device).view(torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _EncodingTable:
    """What turns the bits of an fp32 number into its rank: `offsets` by its top bits, and codes by two ranks."""

    offsets: torch.Tensor
    codes_of_pair: torch.Tensor | None


def _ranks(scaled: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Return the ranks in uint8; `_rank_offsets` says why this sum holds them."""
    bits = scaled.view(torch.int32)
    top = torch.bitwise_right_shift(bits, LOW_BITS).bitwise_and_(2**TOP_BITS - 1)
    sums = offsets.index_select(0, top).add_(bits).abs_()
    return torch.bitwise_right_shift(sums, LOW_BITS, out=sums).to(torch.uint8)


def _rank_offsets(book: CodeBook) -> torch.Tensor:
    """Return by top bits what to add to a number's bits, so that the sum's magnitude has the rank above its low bits.

    Numbers with the same top bits have the same rank unless a threshold lies among them: then the sum of the low
    bits and a term made for that threshold carries into the rank exactly where it is passed. A positive number has
    rank * 2**LOW_BITS + low; with a threshold whose low bits are t, another 2**LOW_BITS - 1 - t, which carries from
    low = t + 1 on. A negative one, whose rank falls as its magnitude grows, has minus that rank, and
    2**LOW_BITS - t, which carries from low = t on; 2**LOW_BITS - 1 less, its magnitude's low bits run from 0.
    """
    carry = 2**LOW_BITS
    top = torch.arange(2**TOP_BITS)
    is_negative = top >= 2 ** (TOP_BITS - 1)
    # As int32 has them, where the upper half of the bits is negative.
    first_bits = (top - is_negative * 2**TOP_BITS) * carry
    ends = torch.stack([first_bits, first_bits + carry - 1]).to(torch.int32).view(torch.float32)
    thresholds = torch.tensor(book.thresholds, dtype=torch.float32)
    # The rank is the number of thresholds below the number (bucketize's left side).
    nearest_zero, farthest = torch.bucketize(ends, thresholds)
    is_number = torch.isfinite(ends).all(dim=0)
    if bool(((nearest_zero - farthest).abs() > 1)[is_number].any()):
        raise ValueError(f"Two thresholds of {book.name} are too near each other for one table.")
    has_threshold = (nearest_zero != farthest) & is_number
    lower = torch.minimum(nearest_zero, farthest).clamp(max=CODES - 2)
    low_bits = thresholds[lower].view(torch.int32).to(torch.int64) & (carry - 1)
    positive = nearest_zero * carry + has_threshold * (carry - 1 - low_bits)
    negative = -nearest_zero * carry + has_threshold * (carry - low_bits) - (carry - 1)
    # Less the top bits themselves, which the number brings along; the sum wraps as int32 does.
    offsets = torch.where(is_negative, negative, positive) - first_bits
    wrapped: torch.Tensor = (offsets + 2**31) % 2**32 - 2**31
    return wrapped.to(torch.int32)


@functools.cache
def _encoding_table(book: CodeBook, device: torch.device) -> _EncodingTable:
    pair = torch.arange(CODES * CODES)
    codes = torch.tensor(book.codes)
    codes_of_pair = (codes[pair >> 4] << 4 | codes[pair & (CODES - 1)]).to(torch.uint8)
    return _EncodingTable(
        offsets=_rank_offsets(book).to(device),
        codes_of_pair=None if book.codes == tuple(range(CODES)) else codes_of_pair.to(device),
    )


@functools.cache
def _decoding_table(book: CodeBook, device: torch.device) -> torch.Tensor:
    """Return for each byte its two fp32 values, held as one 64-bit number to be fetched at once."""
    values = torch.tensor(book.values, dtype=torch.float32)
    pair = torch.arange(CODES * CODES)
    both = torch.stack([values[pair >> 4], values[pair & (CODES - 1)]], dim=1).contiguous()
    return both.view(torch.int64).flatten().to(device)


def _midpoints(ranked: torch.Tensor) -> tuple[float, ...]:
    """Return the fp32 half-way points, rounded as fp32 arithmetic rounds them."""
    return tuple(((ranked[:-1] + ranked[1:]) / 2).tolist())


def _nf4() -> CodeBook:
    values = torch.tensor(NF4_VALUES, dtype=torch.float32)
    return CodeBook(name="nf4", values=NF4_VALUES, codes=tuple(range(CODES)), thresholds=_midpoints(values))


def _fp4() -> CodeBook:
    magnitudes = torch.tensor(FP4_MAGNITUDES, dtype=torch.float32)
    # Adding 0 makes 0 of -0: bitsandbytes writes its map with two equal zeros.
    values = torch.cat([magnitudes, -magnitudes]) / magnitudes.max() + 0.0
    order = torch.argsort(values, stable=True)
    return CodeBook(
        name="fp4",
        values=tuple(values.tolist()),
        codes=tuple(order.tolist()),
        thresholds=_midpoints(values[order]),
    )


def _e2m1() -> CodeBook:
    """Return E2M1, whose half-way points go to the even code as IEEE 754 rounds.

    A threshold that itself goes up is moved to the next fp32 number below, since
    a rank counts the thresholds that a number exceeds. Between the two zeros it
    is the least negative number: what rounds to zero keeps its sign.
    """
    magnitudes = torch.tensor(E2M1_MAGNITUDES, dtype=torch.float32)
    values = torch.cat([magnitudes, -magnitudes])
    codes = (*reversed(range(CODES // 2, CODES)), *range(CODES // 2))
    ranked = values[torch.tensor(codes)]
    exact = (ranked[:-1] + ranked[1:]) / 2
    goes_up = torch.tensor([upper % 2 == 0 for upper in codes[1:]])
    below = torch.nextafter(exact, torch.tensor(-torch.inf))
    return CodeBook(
        name="e2m1",
        values=tuple(values.tolist()),
        codes=codes,
        thresholds=tuple(torch.where(goes_up, below, exact).tolist()),
    )


NF4 = _nf4()
FP4 = _fp4()
E2M1 = _e2m1()
# By scheme; E2M1 is mxfp4's.
CODE_BOOKS: Mapping[str, CodeBook] = {"nf4": NF4, "fp4": FP4}

"""Matrix products of a training step: how many times as long as a long product each size takes, as it was measured.

A linear layer has three products of one size, each in an order of its own (rows, outputs, inputs): forward tokens x
outputs x inputs, the gradient of its input tokens x inputs x outputs, that of its weights outputs x inputs x tokens. No
table has a backward kernel; all three are read from one surface of forward products (`planners/operators/products.py`).

Tables were measured in short bursts, and those of 8 bits with casts. So only their shapes are taken, each size beside a
long product of the same table; what a long one reaches of the peak while a card trains is fitted to whole steps
(`matmul_peak_fraction`, `low_precision_peak_fraction`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.architecture import Operation
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.layouts.candidates import FloatArray, IntArray
from plimsoll.planners.operators.products import GRID, products_of_engines
from plimsoll.planners.operators.surface import Grid, Surface

# Products of 16 bits are cuBLAS's in every engine, of several releases: the middle one stands. Of 8 bits the fastest
# does: engines cast activations within the time, in kernels of their own, training in the kernel that comes before
# (Transformer Engine, pytorch/module/layernorm_linear.py).
SIXTEEN_BITS, EIGHT_BITS = "bfloat16", "fp8"
FORMATS_OF = {SIXTEEN_BITS: (SIXTEEN_BITS,), EIGHT_BITS: (EIGHT_BITS, "fp8_static", "fp8_block")}
# Rows, outputs and inputs of a product that is as fast as any.
LONG_SIDE = 8192.0
# Tokens are the rows of two products and the inputs of the third: along both a product shares what it moves, so that a
# larger micro-batch never takes longer a token. The bounds of the search rest on that.
SHARING = Grid(knots=GRID.knots, grows=(0, 1, 2), shares=(0, 2))
# Operations are worked out at powers of two of tokens up to this one, and run straight between them.
MOST_LOG2_TOKENS = 24
MOST_KEPT_SHAPES = 256
MOST_KEPT_LINES = 4096


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ProductShapes:
    """A card's measured products of one format; without a surface every size is as fast as a long one."""

    surface: Surface | None
    long_seconds_per_flop: float

    def multiple(self, rows: FloatArray, outputs: FloatArray, inputs: FloatArray) -> FloatArray:
        """Return how many times as long as a long product these take, for each of their operations."""
        flops = 2.0 * rows * outputs * inputs
        if self.surface is None:
            return np.ones_like(flops)
        result: FloatArray = self.surface.seconds(rows, outputs, inputs) / flops / self.long_seconds_per_flop
        return result


FLAT = ProductShapes(surface=None, long_seconds_per_flop=1.0)


@functools.lru_cache(maxsize=MOST_KEPT_SHAPES)
def product_shapes(gpu: ByIdentity[Gpu], number_format: str) -> ProductShapes:
    """Return a card's shapes, those of the nearest measured card beside their rooflines where it has no tables."""
    found = [one.surface for one in products_of_engines(gpu.value, FORMATS_OF[number_format])]
    kept = np.median if number_format == SIXTEEN_BITS else np.min
    log2_seconds = SHARING.growing(kept([surface.log2_seconds for surface in found], axis=0))
    surface = Surface(knots=GRID.knots, log2_seconds=SHARING.sharing(log2_seconds), roofline=found[0].roofline)
    long = float(surface.seconds(LONG_SIDE, LONG_SIDE, LONG_SIDE))
    return ProductShapes(surface=surface, long_seconds_per_flop=long / (2.0 * LONG_SIDE**3))


@dataclass(frozen=True, slots=True, eq=False)
class TokenLines:
    """Operations as straight lines in tokens, one from each power of two of them to the next, for each degree in a row.

    They count as many times as they take longer than those of a long product.
    """

    intercepts: FloatArray
    slopes: FloatArray

    def at(self, tokens: FloatArray, place: IntArray) -> FloatArray:
        """Return the operations at tokens whose lines are at `place`."""
        result: FloatArray = self.intercepts.take(place) + self.slopes.take(place) * tokens
        return result


def places(tokens: FloatArray, degree: IntArray) -> IntArray:
    """Return where the lines of tokens stand, `degree` being the places of their tensor-parallel degrees."""
    # A number is a fraction of at least a half times two to a power.
    low = np.clip(np.frexp(tokens)[1] - 1, 0, MOST_LOG2_TOKENS - 1)
    result: IntArray = degree * MOST_LOG2_TOKENS + low
    return result


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PassLines:
    """Products of the forward pass, and of both gradients."""

    forward: TokenLines
    backward: TokenLines


@functools.lru_cache(maxsize=MOST_KEPT_LINES)
def product_lines(
    same: ByIdentity[tuple[Operation, ...]],
    degrees: tuple[int, ...],
    shapes: ByIdentity[ProductShapes],
    *,
    is_routed: bool,
) -> PassLines | None:
    """Return the lines of those products together that every token takes or, `is_routed`, that its experts do.

    None where there are none. A rank's experts compute in one kernel, as full as a product of all their rows.
    """
    chosen = [operation for operation in same.value if (operation.copies > 1) is is_routed]
    return _lines(chosen, degrees, shapes.value) if chosen else None


def _lines(operations: Sequence[Operation], degrees: tuple[int, ...], shapes: ProductShapes) -> PassLines:
    tokens = np.exp2(np.arange(MOST_LOG2_TOKENS + 1))
    ranks = np.array(degrees, dtype=np.float64)[:, None]
    forward, backward = np.zeros((2, ranks.size, tokens.size))
    for operation in operations:
        whole_inputs, whole_outputs = operation.matmul_shape or (1, 1)
        inputs = whole_inputs / (ranks if operation.is_row_parallel else np.ones_like(ranks))
        outputs = whole_outputs / (np.ones_like(ranks) if operation.is_row_parallel else ranks)
        rows = operation.copies * tokens
        flops = 2.0 * rows * inputs * outputs
        forward += flops * shapes.multiple(rows, outputs, inputs)
        backward += flops * (shapes.multiple(rows, inputs, outputs) + shapes.multiple(outputs, inputs, rows))
    return PassLines(forward=_through(tokens, forward), backward=_through(tokens, backward))


def _through(tokens: FloatArray, operations: FloatArray) -> TokenLines:
    slopes = np.diff(operations, axis=1) / np.diff(tokens)
    return TokenLines(intercepts=(operations[:, :-1] - slopes * tokens[:-1]).ravel(), slopes=slopes.ravel())

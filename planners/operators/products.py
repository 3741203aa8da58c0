"""Matrix products of activations with weights: y[rows, outputs] = x[rows, inputs] w[outputs, inputs]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators.formats import FORMATS, operations_per_second
from plimsoll.planners.operators.surface import FloatArray, Grid, Roofline, Surface
from plimsoll.planners.operators.tables import Evidence, find, measured_engines

OPERATOR = "products"
# Rows, outputs, inputs.
GRID = Grid(
    knots=(
        (0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        (5, 8, 10, 11, 12, 13, 14, 16),
        (5, 8, 10, 11, 12, 13, 14, 16),
    ),
    grows=(0, 1, 2),
    shares=(0,),
)
ACTIVATION_BYTES = 2
# What stands in for a format that a card was not measured with.
ALIKE = {
    "fp8": ("fp8", "fp8_static", "fp8_block"),
    "fp8_block": ("fp8_block", "fp8"),
    "nvfp4": ("nvfp4",),
    "int4_wo": ("int4_wo", "int8_wo"),
    "int8_wo": ("int8_wo",),
}
PLAIN = "bfloat16"
# Weights that are unpacked as they are read, by kernels of their own: with one row these reach 0.4 to 0.5 of the
# memory's rate on A100, H100 and H200, products in 16 bits 0.7 to 0.8, so that no card's 16-bit ones stand in.
UNPACKED = ("int4_wo", "int8_wo")


def roofline(gpu: Gpu, number_format: str) -> Roofline:
    """Return the longer of moving weights and activations once and of multiplying, at the card's rates."""
    weight = FORMATS[number_format]
    rate = operations_per_second(gpu, weight.arithmetic)

    def seconds(rows: FloatArray, outputs: FloatArray, inputs: FloatArray) -> FloatArray:
        moved = weight.weight_bytes * outputs * inputs + ACTIVATION_BYTES * rows * (outputs + inputs)
        multiplied = 2 * rows * outputs * inputs / rate
        return np.asarray(np.maximum(moved / gpu.memory_bytes_per_second, multiplied))

    return seconds


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Products:
    """Products with weights of one format on one card, as one engine does them."""

    surface: Surface
    evidence: Evidence

    def seconds(self, rows: npt.ArrayLike, outputs: npt.ArrayLike, inputs: npt.ArrayLike) -> FloatArray:
        """Return the seconds of products of these sizes, the activations' quantization counted where there is one."""
        return self.surface.seconds(rows, outputs, inputs)


def products(gpu: Gpu, engine: str, number_format: str) -> Products:
    """Return the products of a format, by the nearest that was measured; raises `KeyError` at an unknown format."""
    plain = () if number_format in UNPACKED else (PLAIN,)
    wanted = [(name,) for name in (*ALIKE.get(number_format, (number_format,)), *plain)]
    found = find(gpu, OPERATOR, engine, wanted, GRID, roofline)
    if found is None:
        raise KeyError(number_format)
    return Products(surface=found[0], evidence=found[1])


def products_of_engines(gpu: Gpu, formats: Sequence[str]) -> tuple[Products, ...]:
    """Return products of any of the formats by each engine that was measured with one.

    What stands in for a format or an engine says nothing of it, and is left out unless nothing else is there.
    """
    asked = [(name, products(gpu, engine, name)) for name in formats for engine in measured_engines(OPERATOR)]
    own = [one for name, one in asked if one.evidence.variant == name and one.evidence.is_own_engine]
    return tuple(own or [asked[0][1]])

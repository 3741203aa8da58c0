"""What it takes to quantize activations to fp8 where a kernel does that by itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators.surface import FloatArray, Grid, Roofline, Surface
from plimsoll.planners.operators.tables import Evidence, find

OPERATOR = "quantization"
STATIC, DYNAMIC = "static", "dynamic"
# Rows, features.
GRID = Grid(knots=((0, 4, 6, 8, 10, 11, 12, 13, 14, 15), (5, 8, 10, 11, 12, 13, 14, 16)), grows=(0, 1))
READ_BYTES, WRITTEN_BYTES = 2, 1


def roofline(gpu: Gpu, _: str) -> Roofline:
    """Return the time to read the activations in 16 bits and to write them in 8."""

    def seconds(rows: FloatArray, features: FloatArray) -> FloatArray:
        return np.asarray((READ_BYTES + WRITTEN_BYTES) * rows * features / gpu.memory_bytes_per_second)

    return seconds


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Quantization:
    """Quantization of activations by a scale that is given, or with one that is found first."""

    surface: Surface
    evidence: Evidence

    def seconds(self, rows: npt.ArrayLike, features: npt.ArrayLike) -> FloatArray:
        """Return the seconds of so many rows."""
        return self.surface.seconds(rows, features)


def quantization(gpu: Gpu, engine: str, kind: str = DYNAMIC) -> Quantization | None:
    """Return a kind of quantization, None where no card was measured."""
    found = find(gpu, OPERATOR, engine, [(kind,)], GRID, roofline)
    return None if found is None else Quantization(surface=found[0], evidence=found[1])

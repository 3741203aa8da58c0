"""Seconds along one size of a step: known at powers of two, read in a straight line of logarithms between them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
# Tokens or sequences of a step at which operators' seconds are worked out.
SIZES: FloatArray = np.exp2(np.arange(16, dtype=np.float64))
# So that what takes no time has a logarithm.
LEAST_SECONDS = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Seconds at each of `SIZES`; below 1 they are those at 1, beyond the last they go on as they last grew."""

    seconds: FloatArray
    _log2: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Keep the logarithms as plain floats, which are read one at a time."""
        logs = np.log2(np.maximum(self.seconds, LEAST_SECONDS)).tolist()
        object.__setattr__(self, "_log2", tuple(logs))

    def at(self, size: float) -> float:
        """Return the seconds at a size."""
        if size <= 1.0:
            return math.exp2(self._log2[0])
        exponent = math.log2(size)
        low = min(int(exponent), len(self._log2) - 2)
        first, second = self._log2[low], self._log2[low + 1]
        return math.exp2(first + (exponent - low) * (second - first))

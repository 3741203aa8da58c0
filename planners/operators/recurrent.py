"""Kernels of recurrent layers: convolutions and scans over a prompt, updates of a state by one token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators.surface import FloatArray, Grid, Roofline, Surface
from plimsoll.planners.operators.tables import Evidence, find

GATED_DELTA, CHANNEL_DELTA = "gated_delta", "channel_delta"
PROMPT, TOKEN = "prompt", "token"
# Sequences, tokens of each, heads of values.
GRID = Grid(
    knots=((0, 2, 4, 6, 8, 10), (0, 3, 6, 8, 10, 12, 15), (0, 1, 2, 3, 4, 5, 6, 7)),
    grows=(0, 1, 2),
)
ACTIVATION_BYTES, STATE_BYTES = 2, 4
# Features of a head, each of which has as many values in the state.
HEAD_SIZE = 128


def roofline(gpu: Gpu, variant: str) -> Roofline:
    """Return the time to move a layer's inputs and outputs once and, for a token, its state twice."""

    def seconds(sequences: FloatArray, tokens: FloatArray, heads: FloatArray) -> FloatArray:
        moved = ACTIVATION_BYTES * 4 * sequences * tokens * heads * HEAD_SIZE
        states = 2 * STATE_BYTES * sequences * heads * HEAD_SIZE**2 if variant == TOKEN else 0.0
        return np.asarray((moved + states) / gpu.memory_bytes_per_second)

    return seconds


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Recurrence:
    """All kernels of one layer's recurrence, its convolution among them, projections apart."""

    surface: Surface
    evidence: Evidence

    def seconds(self, sequences: npt.ArrayLike, tokens: npt.ArrayLike, heads: npt.ArrayLike) -> FloatArray:
        """Return the seconds of one layer with one rank's heads of values, `tokens` in each of `sequences`."""
        return self.surface.seconds(sequences, tokens, heads)


def recurrence(gpu: Gpu, engine: str, kind: str, phase: str) -> Recurrence | None:
    """Return a kind of recurrence in one phase, None where no card was measured."""
    found = find(gpu, kind, engine, [(phase,)], GRID, roofline)
    return None if found is None else Recurrence(surface=found[0], evidence=found[1])

"""Exchanges of tokens between the ranks that experts are divided over: DeepEP's, and TensorRT-LLM's over NVLink."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators.surface import FloatArray, Grid, Roofline, Surface
from plimsoll.planners.operators.tables import Evidence, find

OPERATOR = "exchanges"
# A rank's tokens, features of a token times its experts.
GRID = Grid(knots=(tuple(range(18)), (12, 14, 15, 16, 17, 18)), grows=(0, 1))
DISPATCH, COMBINE = "dispatch", "combine"
NORMAL, NVLINK_ONE_SIDED = "deepep_normal", "nvlink_one_sided"
# DeepEP is measured by nodes, with 8 GPUs each, TensorRT-LLM's by ranks of one NVLink domain.
MEASURED_SPANS = {
    NORMAL: (1, 2, 4, 8),
    NVLINK_ONE_SIDED: (2, 4, 8, 16),
}
# Bytes of a dispatched value as measured, scales counted: fp8 with a scale in fp32 for 128, and nvfp4.
MEASURED_BYTES = {NORMAL: 1 + 4 / 128, NVLINK_ONE_SIDED: 0.5 + 1 / 16}
# Bytes of a value at least: dispatched in fp8, with TensorRT-LLM in nvfp4, and combined in 16 bits.
COMBINED_BYTES = 2.0
LEAST_BYTES = {DISPATCH: 0.5, COMBINE: 1.0}
# Part of a token's copies that leave the GPU at least: one goes to each rank with any of its experts, here of two.
LEAST_PART_SENT = 1 / 16


def roofline(gpu: Gpu, variant: str) -> Roofline:
    """Return the time to send one copy to one other rank of two, of values in the fewest bytes.

    It is far below what is sent where ranks are many, and keeps times from falling under the link's rate, which is the
    network's between nodes.
    """
    step, rate = variant.split(",")[1], _bytes_per_second(gpu, variant)

    def seconds(tokens: FloatArray, row: FloatArray) -> FloatArray:
        return np.asarray(LEAST_BYTES[step] * LEAST_PART_SENT * tokens * row / rate)

    return seconds


def _bytes_per_second(gpu: Gpu, variant: str) -> float:
    kind, _, span = variant.split(",")
    return gpu.nic_bytes_per_second if kind == NORMAL and int(span) > 1 else gpu.link_bytes_per_second


def variant(kind: str, step: str, span: int) -> str:
    """Return the name of an exchange's variant; `span` are nodes, or ranks of TensorRT-LLM's."""
    return f"{kind},{step},{span}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Exchange:
    """One direction of an exchange; another card's takes `slowness` times as long but for its start."""

    surface: Surface
    evidence: Evidence
    measured_bytes: float
    slowness: float

    def seconds(
        self,
        tokens: npt.ArrayLike,
        hidden: npt.ArrayLike,
        per_token: npt.ArrayLike,
        *,
        value_bytes: float | None = None,
    ) -> FloatArray:
        """Return the seconds of one layer for so many tokens of each rank, evenly routed.

        Values in other formats than the measured take as long as the tokens that are as many bytes.
        """
        row = np.asarray(hidden, dtype=np.float64) * np.asarray(per_token, dtype=np.float64)
        alike = 1.0 if value_bytes is None else value_bytes / self.measured_bytes
        start = self.surface.seconds(1.0, row)
        return self.surface.seconds(alike * np.asarray(tokens, dtype=np.float64), row) - start * (1 - 1 / self.slowness)


def exchange(gpu: Gpu, engine: str, kind: str, step: str, span: int) -> Exchange | None:
    """Return an exchange over so many nodes or ranks, by the nearest that was measured, None where no card was."""
    spans = sorted(MEASURED_SPANS[kind], key=lambda each: abs(np.log2(each / span)))
    # One node's exchange says nothing of the network: another card's over as many nodes comes before the card's own.
    tried = (find(gpu, OPERATOR, engine, [(variant(kind, step, each),)], GRID, roofline) for each in spans)
    found = next((each for each in tried if each is not None), None)
    if found is None:
        return None
    measured = catalogue().gpu(found[1].card)
    name = found[1].variant
    return Exchange(
        surface=found[0],
        evidence=found[1],
        # Sums come back in 16 bits, whatever was sent.
        measured_bytes=MEASURED_BYTES[kind] if step == DISPATCH else COMBINED_BYTES,
        slowness=_bytes_per_second(measured, name) / _bytes_per_second(gpu, name),
    )

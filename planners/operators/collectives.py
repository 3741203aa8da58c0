"""Collectives among the ranks of one node: NCCL's, and the all-reduces that engines have of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators.surface import FloatArray, Grid, Roofline, Surface
from plimsoll.planners.operators.tables import Evidence, find

OPERATOR = "collectives"
# Bytes of the message.
GRID = Grid(
    knots=(tuple(range(8, 30)),),
    grows=(0,),
)
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = "all_reduce", "all_gather", "reduce_scatter", "alltoall"
NCCL = "nccl"
MEASURED_RANKS = (2, 4, 8)


def roofline(gpu: Gpu, variant: str) -> Roofline:
    """Return what each rank sends of a message over the rate of its link to the node's other GPUs.

    A switch that sums on the way (NVLink SHARP) sends an all-reduce's message once, half of what a ring sends
    (Patarasuk & Yuan 2009, https://doi.org/10.1016/j.jpdc.2008.09.002); the others send all but one share.
    """
    ranks = int(variant.split(",")[1])

    def seconds(message_bytes: FloatArray) -> FloatArray:
        return np.asarray((ranks - 1) / ranks * message_bytes / gpu.link_bytes_per_second)

    return seconds


def variant(operation: str, ranks: int) -> str:
    """Return the name of a collective's variant."""
    return f"{operation},{ranks}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Collective:
    """One operation among a number of ranks; of several implementations the fastest for a message is taken."""

    surfaces: tuple[Surface, ...]
    evidence: tuple[Evidence, ...]

    def seconds(self, message_bytes: npt.ArrayLike) -> FloatArray:
        """Return the seconds of a message of so many bytes: the whole tensor, of an all-to-all what one rank sends."""
        return np.asarray(np.minimum.reduce([surface.seconds(message_bytes) for surface in self.surfaces]))


def collective(gpu: Gpu, engine: str, operation: str, ranks: int) -> Collective:
    """Return a collective as an engine runs it in a CUDA graph, NCCL's where it has no faster one of its own.

    Of other numbers of ranks the nearest measured one stands in; raises `KeyError` at an unknown operation.
    """
    measured = sorted(MEASURED_RANKS, key=lambda each: abs(each - ranks))
    wanted = [(variant(operation, each),) for each in (ranks, *measured)]
    tried = (find(gpu, OPERATOR, name, wanted, GRID, roofline) for name in (NCCL, engine))
    found = [each for each in tried if each is not None and each[1].is_own_engine]
    own = [each for each in found if each[1].is_own_card] or found
    if not own:
        raise KeyError(operation)
    surfaces, evidence = zip(*own, strict=True)
    return Collective(surfaces=surfaces, evidence=evidence)

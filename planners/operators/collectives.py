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
PCIE = "pcie"
# Of a message among peers over PCIe, as NCCL's take.
START_SECONDS = 2e-5
# GeForce cards do not reach one another over PCIe, but through the host's memory.
WITHOUT_PEERS = ("rtx-3090", "rtx-4090", "rtx-5090")
# How often a ring of n ranks sends n - 1 shares of a message (Patarasuk & Yuan 2009).
ROUNDS = {ALL_REDUCE: 2, ALL_GATHER: 1, REDUCE_SCATTER: 1, ALL_TO_ALL: 1}


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
    """One operation among a number of ranks; of several implementations the fastest for a message is taken.

    Over PCIe nodes differ: L40S were measured at 3 GB/s in an all-reduce of 4, a tenth of their links, and public runs
    of Llama-3.1-70B on four of them (TensorRT-LLM 0.17) went two to three times as fast as that allows. So a ring at
    `peer_seconds_per_byte` and the measurement are taken to lie as far from the truth; None where nodes are alike.
    """

    surfaces: tuple[Surface, ...]
    evidence: tuple[Evidence, ...]
    peer_seconds_per_byte: float | None = None

    def seconds(self, message_bytes: npt.ArrayLike) -> FloatArray:
        """Return the seconds of a message of so many bytes: the whole tensor, of an all-to-all what one rank sends."""
        measured = np.asarray(np.minimum.reduce([surface.seconds(message_bytes) for surface in self.surfaces]))
        if self.peer_seconds_per_byte is None:
            return measured
        ring = self.peer_seconds_per_byte * np.asarray(message_bytes, dtype=np.float64)
        # A small message takes its start, which links have no part in.
        return np.asarray(np.sqrt(measured * np.minimum(measured, START_SECONDS + ring)))


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
    peers = gpu.link_kind == PCIE and not gpu.id.startswith(WITHOUT_PEERS)
    sent = ROUNDS[operation] * (ranks - 1) / ranks / gpu.link_bytes_per_second
    return Collective(surfaces=surfaces, evidence=evidence, peer_seconds_per_byte=sent if peers else None)

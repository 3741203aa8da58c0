"""How long the phases of a step take on a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from plimsoll.service.worker.devices.device import Device
from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.recording.tracker import BACKWARD, FORWARD, OPTIMIZER

# Of the plan's parts of a step, those in which a rank waits for others.
COLLECTIVE_PARTS = ("tensor_parallel", "data_parallel", "context_parallel", "expert_parallel", "pipeline_bubble")


class PhaseClock:
    """A step's watcher that notes when phases begin, once the device has done what came before."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._begun: list[tuple[str, float]] = []

    def begin_phase(self, step: int, phase: str) -> None:  # noqa: ARG002 - a watcher's signature
        """Note the time."""
        self._device.synchronize()
        self._begun.append((phase, time.perf_counter()))

    def label_all(self, named: Iterable[tuple[str, torch.Tensor]], kind: Kind) -> None:
        """Do nothing: what tensors are for is no matter of time."""

    def seconds(self) -> dict[str, list[float]]:
        """Return how long each phase took, in order; call it when the step is over."""
        self._device.synchronize()
        ends = [at for _, at in self._begun[1:]] + [time.perf_counter()]
        phases: dict[str, list[float]] = {}
        for (phase, begun), ended in zip(self._begun, ends, strict=True):
            phases.setdefault(phase, []).append(ended - begun)
        return phases


def phase_seconds(steps: list[dict[str, list[float]]]) -> dict[str, float]:
    """Return the median time of each phase of a micro-batch, and of the optimizer's, over several steps."""
    phases: dict[str, list[float]] = {}
    for step in steps:
        for phase, seconds in step.items():
            phases.setdefault(phase, []).extend(seconds)
    return {phase: statistics.median(seconds) for phase, seconds in phases.items()}


def step_seconds(
    phases: Mapping[str, float], job: TraceJob, planned: Mapping[str, Any], *, moves_data: bool
) -> dict[str, Any]:
    """Return a whole step's time beside the plan's.

    All micro-batches take as long as those that ran. Where collectives moved no data,
    the plan's own model of them is added, and said so.
    """
    micro_batch = phases.get(FORWARD, 0.0) + phases.get(BACKWARD, 0.0)
    ran = micro_batch * job.accumulation_steps + phases.get(OPTIMIZER, 0.0)
    parts = planned.get("parts", {})
    modelled = 0.0 if moves_data else sum(float(parts.get(name, 0.0)) for name in COLLECTIVE_PARTS)
    return {
        "seconds": ran + modelled,
        "computed_seconds": ran,
        "collectives_seconds": None if moves_data else modelled,
        "collectives_from": "run" if moves_data else "the plan's model",
        "phases": dict(phases),
        "predicted_seconds": planned.get("seconds"),
    }

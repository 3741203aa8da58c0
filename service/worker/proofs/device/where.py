"""Whether a plan's ranks all run, or one of them for all, and whether the machine has the memory."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.planners.ground.units import GIB
from plimsoll.service.ground.errors import NoSuitableDevice
from plimsoll.service.worker.devices.device import Device
from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.jobs.states import is_fully_sharded

# More processes than this do not get their turn on one host's processors: our own choice.
MOST_CPU_RANKS = 8
# What a process holds besides its tensors: 0.33 GiB of data after the steps of a very small model (VmData of a rank
# with gloo, torch 2.13 and transformers 5.23), and as much again for what libraries of kernels set aside.
PROCESS_BYTES = 640 << 20
# What kernels and the allocator of the C library take besides the tensors: our own choice.
HEADROOM = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How many of a job's ranks run for real, and what each may take on the host (None: no limit of its own).

    One rank runs within a group that only pretends to be there: its collectives move
    nothing, and its memory is the same.
    """

    processes: int
    memory_bytes: int | None

    @property
    def moves_data(self) -> bool:
        """Return whether the ranks exchange data."""
        return self.processes > 1


def ranks_to_run(job: TraceJob, stack: Stack, device: Device, *, planned_bytes: int) -> Ranks:
    """Return which ranks run, so many as can; raises NoSuitableDevice where not even one can."""
    needed_bytes = round(planned_bytes * HEADROOM) + (PROCESS_BYTES if device.is_cpu else 0)
    if device.is_cpu:
        together = MOST_CPU_RANKS if needed_bytes * job.world_size <= device.memory_bytes else 1
    else:
        together = device.count
    if needed_bytes > device.memory_bytes and not device.is_planned_kind:
        raise NoSuitableDevice(
            f"A rank of the plan needs {needed_bytes / GIB:.2f} GiB, and this worker's {device.name} may use "
            f"{device.memory_bytes / GIB:.2f}. Validate it at level trace, or on a worker with more memory.",
            pointer="/level",
        )
    if 1 < job.world_size <= together and can_run_together(job, stack):
        share = device.memory_bytes // job.world_size if device.is_cpu else None
        return Ranks(processes=job.world_size, memory_bytes=share)
    return Ranks(processes=1, memory_bytes=None)


def can_run_together(job: TraceJob, stack: Stack) -> bool:
    """Return whether the ranks can exchange all that they would: stages and sharded updates are run alone."""
    return job.pipeline_parallel == 1 and (job.zero_stage == 0 or is_fully_sharded(job, stack))

"""What a trace says of the host's memory: its peak beside the plan's figure, and what lies there by which rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.planners.jobs.optimizers import optimizer_kind
from plimsoll.planners.memory.activation_offload import OVERLAPPED_ONCE, SYNCHRONOUS
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.stacks.records import BY_MODULES
from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.jobs.kernel_rules import KERNEL_RULES
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.recording.ledger import Ledger

WAYS = {
    SYNCHRONOUS: (
        "Activations go to the host as torch's save_on_cpu sends them: every tensor that autograd keeps, weights and "
        "log-softmax too, once for each operation that keeps it."
    ),
    OVERLAPPED_ONCE: (
        "Activations go to the host after TRL 1.16's OffloadActivations: what is kept again while it waits stays on "
        "the device, and gathered or cast weights and the log-softmax are sent as well."
    ),
    BY_MODULES: (
        "Parts of layers go to the host as the stack's own code sends them, each tensor of a million elements or more "
        "as often as it is kept; of the highest layer nothing goes once a step has been."
    ),
}


def uses_host(job: TraceJob) -> bool:
    """Return whether anything of the job lies on the host by plan."""
    return job.states_on_host or job.activation_offload or optimizer_kind(job.optimizer).paged_to_host


def planned_host_bytes(job: TraceJob, memory: Mapping[str, Any]) -> dict[str, int]:
    """Return the plan's `host_bytes`, loading and checkpoints included, where the job uses the host."""
    return {"host_bytes": int(memory.get("host_bytes", 0))} if uses_host(job) else {}


def traced_host_bytes(job: TraceJob, ledgers: Sequence[Ledger]) -> dict[str, Any]:
    """Return the most that a stage's rank has on the host in a step, and what it is, where the job uses the host."""
    if not uses_host(job):
        return {}
    fullest = max((ledger.peak(on_host=True) for ledger in ledgers), key=lambda peak: peak.allocated_bytes)
    return {"host_bytes": fullest.allocated_bytes, "host_kinds": fullest.bytes_by_kind()}


def host_notes(job: TraceJob, stack: Stack) -> list[str]:
    """Return by which rules memory is told apart, and what is not counted."""
    notes = []
    if job.activation_offload:
        notes.append(WAYS[load_profile(job.framework).can.activation_offload])
    if job.states_on_host:
        notes.append(
            stack.notes.offload
            or "Parameters, gradients and optimizer states lie on the host, as FSDP2's CPUOffloadPolicy has them."
        )
    if job.optimizer in KERNEL_RULES:
        notes.append(
            f"The states of {job.optimizer} are made by rule, in bitsandbytes' formats; its update, one kernel in "
            "place, makes nothing else."
        )
    if uses_host(job):
        notes.append(
            "host_bytes are a step's own, without loading and checkpoints; torch rounds each pinned tensor up to a "
            "power of two, which is not counted."
        )
    return notes

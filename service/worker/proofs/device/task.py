"""Level `device`: a plan's training step for real, against what the plan says of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from plimsoll.service.worker.devices.device import ANY, Device, environment, find_device
from plimsoll.service.worker.jobs.job import PipelineStage, TraceJob
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.jobs.states import runs_own_code
from plimsoll.service.worker.proofs.device.clock import step_seconds
from plimsoll.service.worker.proofs.device.processes import run_ranks
from plimsoll.service.worker.proofs.device.running import run_rank
from plimsoll.service.worker.proofs.device.where import Ranks, ranks_to_run
from plimsoll.service.worker.proofs.planned_stage import predicted_of_stage
from plimsoll.service.worker.proofs.refusals.every import proved_job
from plimsoll.service.worker.proofs.trace.notes import step_notes, traced_with
from plimsoll.service.worker.proofs.verdict import (
    CONFIRMED,
    CONSISTENT,
    REFUTED,
    TOLERANCE_FRACTION,
    relative_error,
    verdict,
)
from plimsoll.service.worker.tasks import Report
from plimsoll.service.worker.training.rank import process_group_of
from plimsoll.service.worker.training.steady import TRACE_STAGES


def run_on_device(request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return the result of running a stored training plan's step on this worker's device.

    Raises `NotYetAvailable`, naming it, for what cannot be run, and NoSuitableDevice
    where the worker has none for it. Too little memory is a result.
    """
    started = time.monotonic()
    job, stack = proved_job(request)
    wanted = request.get("device") or {}
    device = find_device(
        wanted.get("on", ANY), planned_gpu=request["gpu"], any_gpu_kind=bool(wanted.get("any_gpu_kind"))
    )
    memory = request["plan"]["memory"]
    ranks = ranks_to_run(job, stack, device, planned_bytes=int(memory["allocated_bytes"]))
    accounts = _accounts(request, job, stack, device, ranks, report)
    result = device_result(job, stack, device, ranks, accounts, request["plan"])
    result["seconds"] = time.monotonic() - started
    report(1, 1, "stage", "done")
    return result


def _accounts(
    request: Mapping[str, Any], job: TraceJob, stack: Stack, device: Device, ranks: Ranks, report: Report
) -> list[dict[str, Any]]:
    """Return what each rank that ran says of itself; without others, the first rank of each stage that may decide."""
    if ranks.processes > 1:
        return run_ranks(request, device, ranks=ranks.processes, memory_bytes=ranks.memory_bytes, report=report)
    device.select()
    accounts = []
    for index, stage in enumerate(job.deciding_stages):
        first = stage.number * job.data_parallel * job.tensor_parallel
        with process_group_of(job.world_size, rank=first):
            accounts.append(run_rank(job, stack, stage, device, rank=first, report=_shifted(report, index, job, stage)))
    return accounts


def _shifted(report: Report, index: int, job: TraceJob, stage: PipelineStage) -> Report:
    stages = len(job.deciding_stages)
    prefix = f"stage {stage.number}: " if stages > 1 else ""
    return lambda done, _total, unit, message: report(
        index * TRACE_STAGES + done, stages * TRACE_STAGES, unit, prefix + message
    )


def device_result(
    job: TraceJob,
    stack: Stack,
    device: Device,
    ranks: Ranks,
    accounts: list[dict[str, Any]],
    plan: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what the fullest rank took, beside what the plan predicted of its stage."""
    memory = plan["memory"]
    worst = max(accounts, key=lambda account: (account["out_of_memory"] is not None, int(account["peak_bytes"])))
    predicted, measured_bytes = predicted_of_stage(memory, worst["stage"]), int(worst["peak_bytes"])
    failure = worst["out_of_memory"]
    measured_names = ("peak_bytes", "reserved_bytes", "items", "kinds")
    return {
        "level": "device",
        "rank": worst["rank"],
        "predicted": predicted,
        "measured": {
            **{name: worst[name] for name in measured_names},
            **{name: value for name, value in worst.items() if name in ("statistics", "nvml", "card")},
        },
        "relative_error": relative_error(predicted["peak_bytes"], measured_bytes) if failure is None else None,
        "tolerance_fraction": TOLERANCE_FRACTION,
        "device": device.name,
        "environment": environment(device),
        "traced_with": traced_with(job, stack, on_device=True),
        "verdict": _verdict(job, stack, device, memory, measured_bytes, failure),
        "out_of_memory": failure,
        "step": _step(job, ranks, worst, plan),
        "ranks": [_line(account) for account in accounts],
        **{name: worst[name] for name in ("phases", "timeline", "peak_phase", "peak_step", "largest_live")},
        "notes": device_notes(job, stack, device, ranks, worst),
    }


def _verdict(
    job: TraceJob,
    stack: Stack,
    device: Device,
    memory: Mapping[str, Any],
    measured_bytes: int,
    failure: Mapping[str, Any] | None,
) -> str:
    """Return whether the run bears the plan out; a plan that was not to fit is borne out by running out of memory."""
    promised = int(memory["peak_bytes"]) <= int(memory["limit_bytes"])
    ran_own_code = runs_own_code(job, stack) and device.is_planned_kind
    if failure is not None:
        if promised or not device.is_planned_kind:
            return REFUTED
        return CONFIRMED if ran_own_code else CONSISTENT
    return verdict(
        predicted_bytes=int(memory["allocated_bytes"]),
        measured_bytes=measured_bytes,
        ran_own_code=ran_own_code,
        runtime_bytes=int(memory["items"].get("runtime", 0)),
        planned_peak_bytes=int(memory["peak_bytes"]),
        limit_bytes=int(memory["limit_bytes"]),
    )


def _step(job: TraceJob, ranks: Ranks, worst: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the step's time; None where it was not reached, and of a pipeline, whose bubble is not run."""
    if not worst["phase_seconds"] or job.pipeline_parallel > 1:
        return None
    return step_seconds(worst["phase_seconds"], job, plan.get("step") or {}, moves_data=ranks.moves_data)


def _line(account: Mapping[str, Any]) -> dict[str, Any]:
    names = ("rank", "stage", "peak_bytes", "reserved_bytes", "held", "kept_for_backward_bytes")
    return {name: account[name] for name in names}


def device_notes(job: TraceJob, stack: Stack, device: Device, ranks: Ranks, worst: Mapping[str, Any]) -> list[str]:
    """Return what ran, and what stands in for what."""
    notes = step_notes(job, stack, on_device=True)
    together = f"{ranks.processes} processes ran as the plan's ranks and exchanged their data."
    alone = "One rank ran at a time, with all of its own shards; its collectives moved nothing, its memory is the same."
    notes.insert(0, together if ranks.processes > 1 else alone)
    notes.insert(1, f"Peaks are counted by {worst['counted_by']}.")
    if stack.has_fused_kernels:
        notes.append(stack.notes.kernels_on_device)
    if stack.has_liger_kernels:
        notes.append("Norms, gated activations and loss ran as torch's operations, not as Liger's kernels.")
    if device.is_cpu:
        notes.insert(2, "On a CPU: seconds are this host's, and the kernels are the CPU's own.")
        notes.insert(3, "reserved_bytes replays the allocations through a model of CUDA's caching allocator.")
    return notes

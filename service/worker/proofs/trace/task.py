"""Level `trace`: one rank's training steps on fake tensors, against the plan."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.jobs.states import traces_own_code
from plimsoll.service.worker.proofs.planned_stage import predicted_of_stage
from plimsoll.service.worker.proofs.refusals.every import proved_job
from plimsoll.service.worker.proofs.trace.host_account import host_notes, planned_host_bytes, traced_host_bytes
from plimsoll.service.worker.proofs.trace.layer_sampling import StageTrace, sampling_notes, trace_stage
from plimsoll.service.worker.proofs.trace.lifetimes import largest_allocations
from plimsoll.service.worker.proofs.trace.moments import compared_moments
from plimsoll.service.worker.proofs.trace.notes import step_notes, traced_with
from plimsoll.service.worker.proofs.verdict import TOLERANCE_FRACTION, relative_error, verdict
from plimsoll.service.worker.recording.allocator import replay
from plimsoll.service.worker.recording.curve import largest_owners, phase_at, phase_peaks, thinned_curve
from plimsoll.service.worker.tasks import Report
from plimsoll.service.worker.training.steady import TRACE_STAGES


def trace_plan(request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return the result of tracing a stored training plan.

    Raises `NotYetAvailable`, naming it, for what cannot be traced.
    """
    started = time.monotonic()
    job, stack = proved_job(request)
    traces = [
        trace_stage(job, stack, _stage_report(report, job, index), stage)
        for index, stage in enumerate(job.deciding_stages)
    ]
    total = TRACE_STAGES * len(traces)
    report(total - 1, total, "stage", "replaying the allocations")
    result = traced_result(job, stack, traces, request["plan"]["memory"])
    result["seconds"] = time.monotonic() - started
    report(total, total, "stage", "done")
    return result


def _stage_report(report: Report, job: TraceJob, index: int) -> Report:
    """Return a report that counts on from the stages before, and names the stage where there are several."""
    stages = job.deciding_stages
    prefix = f"stage {stages[index].number}: " if len(stages) > 1 else ""

    def shifted(done: int, total: int, unit: str, message: str) -> None:
        report(index * total + done, len(stages) * total, unit, prefix + message)

    return shifted


def traced_result(job: TraceJob, stack: Stack, traces: list[StageTrace], memory: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the worst stage's ledger shows, beside what the plan's `memory` predicted of that stage.

    Both are the allocator's live bytes; the reserved ones come from the replay. The verdict is on what the plan says
    of its own worst stage, which is what it promises.
    """
    worst = max(traces, key=lambda trace: trace.ledger.peak().allocated_bytes)
    ledger = worst.ledger
    peak = ledger.peak()
    predicted = predicted_of_stage(memory, worst.stage.number)
    fixed, expandable = replay(ledger.events), replay(ledger.events, expandable_segments=True)
    step, phase = phase_at(ledger, peak.event)
    items = peak.bytes_by_item()
    return {
        "level": "trace",
        "rank": worst.stage.number * job.data_parallel * job.context_parallel * job.tensor_parallel,
        "predicted": {
            **predicted,
            **planned_host_bytes(job, memory),
        },
        "measured": {
            "peak_bytes": peak.allocated_bytes,
            "reserved_bytes": fixed.peak_reserved_bytes,
            "reserved_expandable_segments_bytes": expandable.peak_reserved_bytes,
            "items": items,
            "kinds": peak.bytes_by_kind(),
            **traced_host_bytes(job, [trace.ledger for trace in traces]),
        },
        "relative_error": relative_error(predicted["peak_bytes"], peak.allocated_bytes),
        "tolerance_fraction": TOLERANCE_FRACTION,
        "device": "cpu (fake tensors, no data)",
        "traced_with": traced_with(job, stack, on_device=False),
        "verdict": verdict(
            predicted_bytes=int(memory["allocated_bytes"]),
            measured_bytes=peak.allocated_bytes,
            ran_own_code=traces_own_code(job, stack),
            runtime_bytes=int(memory["items"].get("runtime", 0)),
            planned_peak_bytes=int(memory["peak_bytes"]),
            limit_bytes=int(memory["limit_bytes"]),
        ),
        "stages": [_stage(job, trace, memory) for trace in traces],
        "phases": phase_peaks(ledger),
        "timeline": thinned_curve(ledger.allocated_curve()),
        "peak_phase": phase,
        "peak_step": step,
        "largest_live": largest_owners(peak),
        "sampled_layers": list(worst.sampled_layers),
        "extrapolated": any(trace.sampled_layers for trace in traces),
        "notes": step_notes(job, stack, on_device=False) + host_notes(job, stack) + sampling_notes(traces),
    }


def _stage(job: TraceJob, trace: StageTrace, memory: Mapping[str, Any]) -> dict[str, Any]:
    peak, chunks = trace.ledger.peak(), job.chunks_of(trace.stage)
    planned = (stage.get("moments") for stage in memory["stages"] if stage["stage"] == trace.stage.number)
    moments = next(planned, None) or ()
    return {
        "stage": trace.stage.number,
        "layers": [trace.stage.first_layer, trace.stage.last_layer],
        "peak_bytes": peak.allocated_bytes,
        "reserved_bytes": replay(trace.ledger.events).peak_reserved_bytes,
        "items": peak.bytes_by_item(),
        "sampled_layers": list(trace.sampled_layers),
        **compared_moments(trace.ledger, chunks, moments),
        "largest_allocations": largest_allocations(trace.ledger, moments),
    }

"""One drawn plan traced by the worker's own path, as a line to store; the only module here that loads torch."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.random_plans.draw import DrawnPlan
from benchmarks.random_plans.ledgers import packed
from benchmarks.random_plans.planning import planned_memory, proof_request, read_request
from plimsoll.service.worker.jobs.job import PipelineStage
from plimsoll.service.worker.proofs.refusals.every import proved_job
from plimsoll.service.worker.recording.curve import phase_at, phase_peaks
from plimsoll.service.worker.recording.ledger import Ledger


def traced_line(plan: DrawnPlan) -> dict[str, Any]:
    """Return what the traces of a plan's stages show, and whose code ran."""
    from plimsoll.service.worker.proofs.trace.host_account import traced_host_bytes
    from plimsoll.service.worker.proofs.trace.layer_sampling import trace_stage
    from plimsoll.service.worker.proofs.trace.notes import traced_with

    asked = read_request(plan.request)
    job, stack = proved_job(proof_request(asked, plan.layout, planned_memory(asked, plan.layout)))
    started = time.monotonic()
    stages = []
    for stage in (job.stages or job.deciding_stages)[: plan.layout.pipeline_parallel]:
        if stage.number in plan.stages:
            trace = trace_stage(job, stack, _silent, stage)
            stages.append(_stage_line(stage, trace.ledger) | traced_host_bytes(job, [trace.ledger]))
    return {
        "number": plan.number,
        "traced_with": traced_with(job, stack, on_device=False),
        "seconds": round(time.monotonic() - started, 1),
        "stages": stages,
    }


def _silent(_done: int, _total: int, _unit: str, _message: str) -> None:
    """Tell nobody how far a trace is."""


def _stage_line(stage: PipelineStage, ledger: Ledger) -> dict[str, Any]:
    peak = ledger.peak()
    step, phase = phase_at(ledger, peak.event)
    return {
        "stage": stage.number,
        "layers": [stage.first_layer, stage.last_layer],
        "peak_bytes": peak.allocated_bytes,
        "peak_step": step,
        "peak_phase": phase,
        "items": peak.bytes_by_item(),
        "phases": _worst_of_phases(ledger),
        "ledger": packed(ledger),
    }


def _worst_of_phases(ledger: Ledger) -> list[dict[str, Any]]:
    """Return each phase's peak in each step, of a phase that comes for every micro-batch the highest."""
    worst: dict[tuple[Any, Any], dict[str, Any]] = {}
    for found in phase_peaks(ledger):
        place = (found["step"], found["phase"])
        if place not in worst or found["peak_bytes"] > worst[place]["peak_bytes"]:
            worst[place] = found
    return [{name: found[name] for name in ("step", "phase", "peak_bytes", "kinds")} for found in worst.values()]

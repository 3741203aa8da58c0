"""A measured run traced by the worker's own path, and its ledger replayed; the only module here that loads torch."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.accuracy.peak_memory.cases import FIRST_RANK, MemoryCase
from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.planners.plans import Layout, Memory
from plimsoll.service.worker.jobs.job import PipelineStage, TraceJob
from plimsoll.service.worker.proofs.refusals.every import proved_job
from plimsoll.service.worker.recording.allocator import replay


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TracedRun:
    """The allocated peak of a run's worst stage, and what the replay of its ledger reserves."""

    allocated_bytes: int
    fixed_bytes: int
    expandable_bytes: int


def traced_run(case: MemoryCase, layout: Layout, memory: Memory) -> TracedRun | None:
    """Return a run as it traces, with the stack's own kernels where compiled ones ran; None where it is not traced."""
    from plimsoll.service.worker.proofs.trace.layer_sampling import trace_stage

    for kernels in dict.fromkeys((case.request["training"].get("kernels"), None)):
        try:
            job, stack = proved_job(_request(case, layout, memory, kernels))
        except NotYetAvailable:
            continue
        stages = [trace_stage(job, stack, _silent, stage).ledger for stage in _stages(case, job)]
        fixed = [replay(ledger.events) for ledger in stages]
        expandable = [replay(ledger.events, expandable_segments=True) for ledger in stages]
        return TracedRun(
            allocated_bytes=max(ledger.peak().allocated_bytes for ledger in stages),
            fixed_bytes=max(each.peak_reserved_bytes for each in fixed),
            expandable_bytes=max(each.peak_reserved_bytes for each in expandable),
        )
    return None


def _stages(case: MemoryCase, job: TraceJob) -> tuple[PipelineStage, ...]:
    return job.stages[:1] if case.place == FIRST_RANK and job.stages else job.deciding_stages


def _request(case: MemoryCase, layout: Layout, memory: Memory, kernels: str | None) -> dict[str, Any]:
    asked = case.request["training"]
    kept = ("method", "precision", "sequence_length", "recompute")
    return {
        "level": "trace",
        "kind": "train",
        "model": {"name": case.case_id, "config": dict(case.request["model"]["config"])},
        "request": {
            "training": {
                **{name: asked[name] for name in kept},
                "optimizer": "adamw",
                "kernels": kernels,
                "attention": "flash",
            }
        },
        "plan": {"layout": dataclasses.asdict(layout), "memory": dataclasses.asdict(memory)},
    }


def _silent(_done: int, _total: int, _unit: str, _message: str) -> None:
    """Tell nobody how far a trace is."""

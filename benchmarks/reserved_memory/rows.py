"""What each measured run reserved, and what each way of telling it says."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from benchmarks.accuracy.asking import question_of as asked_question
from benchmarks.accuracy.peak_memory.cases import FIRST_RANK, RESERVED, MemoryCase
from benchmarks.random_plans.planning import _candidates
from benchmarks.reserved_memory.planned_events import reserved_by_events
from plimsoll.planners.layouts.candidates import FloatArray
from plimsoll.planners.memory.programs.choice import prepared
from plimsoll.planners.memory.programs.question import question_of
from plimsoll.planners.memory.programs.stream_pools import stream_peaks
from plimsoll.planners.plans import Memory
from plimsoll.planners.search.able import jobs_of
from plimsoll.planners.training.planning import plan_without_advice

PLAN, EVENTS_FIXED, EVENTS_EXPANDABLE = "plan", "events, fixed", "events, expandable"
TRACE_FIXED, TRACE_EXPANDABLE = "trace, fixed", "trace, expandable"
WAYS = (PLAN, EVENTS_FIXED, EVENTS_EXPANDABLE, TRACE_FIXED, TRACE_EXPANDABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured run: what its stage holds by plan, in all and by pool, and what each way says that it reserves."""

    case: MemoryCase
    measured_bytes: float
    allocated_bytes: float
    main_bytes: float
    other_bytes: float
    told: dict[str, float] = field(default_factory=dict)

    @property
    def table(self) -> str:
        """Return which table of its source the run stands in, as far as names tell it."""
        return "-".join(self.case.case_id.split("-")[:3])


def measured_row(case: MemoryCase, *, with_trace: bool) -> Row | None:
    """Return a case whose reserved memory is stated, and every way's figure of it; None for another."""
    if case.kind != RESERVED or not case.is_seen or not case.is_point or case.measured_bytes is None:
        return None
    question = asked_question(case.request)
    plan = plan_without_advice(question).plan
    (job,) = jobs_of(question)
    asked = question_of(_candidates(plan.layout), job)
    stage = _stage(case, plan.memory)
    part = plan.memory.stages[stage]
    pools = stream_peaks(prepared(asked), job)
    told: dict[str, float] = {
        PLAN: part.peak_bytes - part.items.runtime,
        EVENTS_FIXED: reserved_by_events(asked, stage, block_bytes=0, expandable_segments=False),
        EVENTS_EXPANDABLE: reserved_by_events(
            asked, stage, block_bytes=int(asked.active.p2p_message.max()), expandable_segments=True
        ),
    }
    if with_trace:
        from benchmarks.reserved_memory.traced import traced_run

        traced = traced_run(case, plan.layout, plan.memory)
        if traced is not None:
            told |= {TRACE_FIXED: traced.fixed_bytes, TRACE_EXPANDABLE: traced.expandable_bytes}
    shape = asked.rows.stage.shape
    return Row(
        case=case,
        measured_bytes=case.measured_bytes,
        allocated_bytes=told[PLAN] - part.items.fragmentation,
        main_bytes=_at(pools.main, shape, stage),
        other_bytes=_at(pools.others, shape, stage),
        told=told,
    )


def _stage(case: MemoryCase, memory: Memory) -> int:
    """Return the stage that was read: the first, or the worst."""
    if case.place == FIRST_RANK:
        return 0
    return max(range(len(memory.stages)), key=lambda stage: memory.stages[stage].peak_bytes)


def _at(amounts: FloatArray, shape: tuple[int, ...], stage: int) -> float:
    return float(np.broadcast_to(amounts, shape)[stage, 0])

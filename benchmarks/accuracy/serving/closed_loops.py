"""Closed loops simulated request by request, beside the measured means and the closed form's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.serving.latencies import LatencyCase
from plimsoll.planners.serving.simulated_load import SimulatedReplica
from plimsoll.planners.serving.times.batching import Deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """One row: planned over measured times to the first token and per token, simulated and by the closed form."""

    engine: str
    source: str
    simulated: tuple[float, float]
    closed_form: tuple[float, float]


def closed_loops(cases: Sequence[LatencyCase]) -> Iterator[ClosedLoop]:
    """Yield every case whose first token was measured and whose cache is described."""
    for case in cases:
        if case.replica is None or case.first_token_seconds is None or not case.replica.places:
            continue
        clients = max(1, round(case.batch))
        deployment = Deployment(work=case.work, places=case.replica.places, replicas=1, traffic=case.traffic)
        replica = SimulatedReplica(
            question=case.question, settings=case.settings, replica=case.replica, deployment=deployment
        )
        load, state = replica.closed_loop(clients), deployment.at(clients)
        measured = (case.first_token_seconds, case.token_seconds)
        yield ClosedLoop(
            engine=case.engine,
            source=case.source,
            simulated=(load.ttft.mean_seconds / measured[0], load.tpot.mean_seconds / measured[1]),
            closed_form=(state.ttft_seconds / measured[0], state.tpot_seconds / measured[1]),
        )


def closed_loop_lines(rows: Sequence[ClosedLoop]) -> Iterator[str]:
    """Yield mean errors and medians of planned over measured by engine and campaign."""
    yield "mean error and median of planned over measured"
    yield (
        f"{'engine':8} {'source':8} {'rows':>5} {'first token':>16} {'closed form':>16} {'per token':>16} "
        f"{'closed form':>16}"
    )
    for engine, source in sorted({(row.engine, row.source) for row in rows}):
        yield _line(engine, source, [row for row in rows if (row.engine, row.source) == (engine, source)])
    yield _line("all", "all", rows)


def _line(engine: str, source: str, rows: Sequence[ClosedLoop]) -> str:
    simulated = np.array([row.simulated for row in rows])
    closed_form = np.array([row.closed_form for row in rows])
    columns = [ratios[:, kind] for kind in (0, 1) for ratios in (simulated, closed_form)]
    told = [f"{np.abs(ratios - 1).mean():7.1%} ({np.median(ratios):6.2f})" for ratios in columns]
    return f"{engine:8} {source:8} {len(rows):5} {' '.join(told)}"

"""What a calibration by its own deployments would make of each card's public runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.accuracy.serving.latencies import LatencyCase
from plimsoll.planners.calibration.serving import MeasuredServing, calibrate_serving
from plimsoll.planners.serving.times.batching import Deployment


def calibrated_lines(cases: Sequence[LatencyCase]) -> Iterator[str]:
    """Yield, by card and engine, the time per token's error as shipped, calibrated, and with each run left out."""
    yield f"{'card':10} {'engine':8} {'runs':>5} {'shipped':>8} {'fitted':>8} {'left out':>9}"
    for gpu, engine in sorted({(case.gpu, case.engine) for case in cases}):
        runs = [case for case in cases if (case.gpu, case.engine) == (gpu, engine)]
        (found,) = calibrate_serving([_measured(case, number) for number, case in enumerate(runs)])
        errors = [each.mean_absolute for each in (found.error_shipped, found.error_fitted, found.error_left_out)]
        yield f"{gpu:10} {engine:8} {len(runs):5} {errors[0]:8.1%} {errors[1]:8.1%} {errors[2]:9.1%}"


def _measured(case: LatencyCase, number: int) -> MeasuredServing:
    clients = round(case.batch)
    deployment = Deployment(work=case.work, places=case.places or clients, replicas=1, traffic=case.traffic)
    return MeasuredServing(
        pointer=f"/{number}",
        what=case.deployment,
        engine=case.engine,
        deployment=deployment,
        concurrency=clients,
        token_seconds=case.token_seconds,
        first_token_seconds=None,
    )

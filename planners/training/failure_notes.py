"""What an answer says of failures: whose they are, between which numbers they lie, and what a restart costs."""

from __future__ import annotations

from collections.abc import Iterator

from plimsoll.planners.catalogue.failure_rates import COVERAGE, PESSIMISTIC, published_range, published_rates
from plimsoll.planners.ground.figures import counted, duration, figure
from plimsoll.planners.plans import Run
from plimsoll.planners.questions import USUAL_FAILURES, Resilience
from plimsoll.planners.training.resilience import (
    CHECKPOINT_BYTES_PER_SECOND_PER_GPU,
    LEAST_RESTART_SECONDS,
    MOST_RESTART_SECONDS,
    RESTART_SECONDS,
)


def failure_notes(given: Resilience, run: Run) -> Iterator[str]:
    """Yield where the rate of failures, of checkpoints and the time of a restart come from, where nobody gave them."""
    yield from _rate(given, run)
    yield from _interval(given, run)
    if given.checkpoint_bytes_per_second is None:
        rate = CHECKPOINT_BYTES_PER_SECOND_PER_GPU / 1e6
        yield f"Checkpoints are written and read at {rate:.0f} MB/s per GPU, the sustained rate of Llama 3's storage."
    if given.restart_seconds is None:
        yield (
            f"A restart takes {duration(RESTART_SECONDS)}, MegaScale's published bound for detection and diagnosis, "
            "plus the time to read the checkpoint. On Meta's RSC clusters it took "
            f"{LEAST_RESTART_SECONDS / 60:.0f} to {duration(MOST_RESTART_SECONDS)} (arXiv:2410.21680)."
        )


def _rate(given: Resilience, run: Run) -> Iterator[str]:
    """Yield whose failures a run is planned with; nothing of a rate that the client gave."""
    source, rate = run.failure_rate_source, figure(given.gpu_failures_per_month)
    published = published_rates().get(source or "")
    if published is not None:
        what = f"{published.counted}, or {rate} per GPU and month ({published.source})"
        yield f"Failures follow {published.title}: {what}."
    elif given.counted is not None:
        of = f"{counted(given.counted.failures, 'failure')} in {figure(given.counted.gpu_days)} days of a GPU"
        yield f"Failures are as you counted them, {of}, or {rate} per GPU and month."
    elif source == PESSIMISTIC:
        yield f"Failures are {rate} per GPU and month, six times Llama 3's, by no source on record."


def _interval(given: Resilience, run: Run) -> Iterator[str]:
    """Yield between which numbers the failures of a run lie, where anything bounds them."""
    bounds = run.failures_per_day_low, run.failures_per_day_high, run.goodput_low, run.goodput_high
    if None in bounds:
        return
    low, high, least_kept, most_kept = (bound or 0.0 for bound in bounds)
    kept = f"a goodput of {least_kept:.1%} to {most_kept:.1%}"
    here = f"{figure(low)} to {figure(high)} failures a day here, which leave {kept}"
    if given.failures_like is None and given.counted is None:
        least, most = published_range()
        yield (
            f"Published GPU clusters lie between {figure(least.per_gpu_month)} ({least.name}) and "
            f"{figure(most.per_gpu_month)} ({most.name}): {here}. Name the one that yours is like in "
            "resilience.gpu_failures_per_month, or give your own."
        )
        return
    is_count = given.counted is not None or published_rates()[given.failures_like or USUAL_FAILURES].is_count
    what = f"The {COVERAGE:.0%} Poisson interval of that count" if is_count else "What the source says"
    yield f"{what} is {here}."

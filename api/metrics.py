"""Counters for Prometheus, kept in a registry of the app's own."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from planners.version import planner_version
from service.persistence.records import JobState

# From the stored plan found again to the longest a request may take.
_SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Everything this process counts."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._request_seconds = Histogram(
            "plimsoll_http_request_seconds",
            "Seconds from a request's arrival to the end of its answer",
            ["method", "route", "status"],
            buckets=_SECONDS_BUCKETS,
            registry=self._registry,
        )
        self._plans = Counter(
            "plimsoll_plans_answered", "Plans answered, stored ones included", ["kind", "fits"], registry=self._registry
        )
        self._jobs = Gauge("plimsoll_jobs", "Jobs by state", ["state"], registry=self._registry)
        self._database_up = Gauge(
            "plimsoll_database_up", "Whether the database answered at this scrape", registry=self._registry
        )
        version = Gauge("plimsoll_version", "Always 1; the label says which", ["version"], registry=self._registry)
        version.labels(planner_version()).set(1)

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        self._request_seconds.labels(method, route, str(status)).observe(seconds)

    def count_plan(self, kind: str, *, fits: bool) -> None:
        """Count one answered plan."""
        self._plans.labels(kind, str(fits).lower()).inc()

    def exposition(self, jobs_by_state: Mapping[JobState, int] | None) -> bytes:
        """Return everything in Prometheus' text format; `jobs_by_state` is None while the database is away."""
        self._database_up.set(0 if jobs_by_state is None else 1)
        for state, count in (jobs_by_state or {}).items():
            self._jobs.labels(state).set(count)
        return generate_latest(self._registry)

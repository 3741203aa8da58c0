"""Counters for Prometheus, kept in a registry of the app's own."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from plimsoll.planners.version import planner_version
from plimsoll.service.observability.records_kept import Records
from plimsoll.service.plans.answers import TimedSearch

# From the stored plan found again to the longest a request may take.
_SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

# From a fixed layout to the largest searches, by decades.
_LAYOUTS_BUCKETS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)


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
        self._seconds_of: dict[tuple[str, str, int], Histogram] = {}
        self._plans = Counter(
            "plimsoll_plans_answered",
            "Plans answered, stored ones included",
            ["kind", "verdict"],
            registry=self._registry,
        )
        self._search_seconds = Histogram(
            "plimsoll_search_seconds",
            "Seconds that searching for a new plan took",
            ["kind"],
            buckets=_SECONDS_BUCKETS,
            registry=self._registry,
        )
        self._search_layouts = Histogram(
            "plimsoll_search_layouts",
            "Layouts whose memory was evaluated for a new plan",
            ["kind"],
            buckets=_LAYOUTS_BUCKETS,
            registry=self._registry,
        )
        self._reviews = Counter(
            "plimsoll_admission_reviews",
            "Admission reviews answered, by what was decided and whether all of the workload was judged",
            ["decision", "judged"],
            registry=self._registry,
        )
        self._on_record = self._record_gauges()
        self._database_up = Gauge(
            "plimsoll_database_up", "Whether the database answered at this scrape", registry=self._registry
        )
        version = Gauge("plimsoll_version", "Always 1; the label says which", ["version"], registry=self._registry)
        version.labels(planner_version()).set(1)

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        # Looked up here: the library checks its labels each time, and takes a lock.
        counted = self._seconds_of.get((method, route, status))
        if counted is None:
            counted = self._seconds_of[method, route, status] = self._request_seconds.labels(method, route, str(status))
        counted.observe(seconds)

    def count_plan(self, kind: str, verdict: str) -> None:
        """Count one answered plan."""
        self._plans.labels(kind, verdict).inc()

    def count_review(self, *, is_allowed: bool, is_judged: bool) -> None:
        """Count one answered admission review."""
        self._reviews.labels("allowed" if is_allowed else "refused", "yes" if is_judged else "no").inc()

    def observe_search(self, kind: str, search: TimedSearch) -> None:
        """Count one search for a plan that was not stored yet."""
        self._search_seconds.labels(kind).observe(search.seconds)
        self._search_layouts.labels(kind).observe(search.layouts_considered)

    def exposition(self, records: Records | None) -> bytes:
        """Return everything in Prometheus' text format; `records` is None while the database is away."""
        self._database_up.set(0 if records is None else 1)
        for gauge in self._on_record.values():
            # What is no longer on record is told no longer, and nothing is told that is not known.
            gauge.clear()
        if records is not None:
            self._set_records(records)
        return generate_latest(self._registry)

    def _record_gauges(self) -> dict[str, Gauge]:
        accuracy = ["level", "framework", "family", "gpu"]
        named = {
            "plimsoll_jobs": ("Jobs by state", ["state"]),
            "plimsoll_queue_waiting": ("Jobs that wait in a queue", ["queue"]),
            "plimsoll_queue_oldest_seconds": ("How long the oldest job of a queue has waited", ["queue"]),
            "plimsoll_job_outcomes": ("How the finished jobs on record ended", ["kind", "state"]),
            "plimsoll_prediction_measurements": ("Measurements beside predictions on record", accuracy),
            "plimsoll_prediction_median_error": ("Median of |predicted / measured - 1|", accuracy),
            "plimsoll_prediction_mean_error": ("Mean of predicted / measured - 1", accuracy),
        }
        return {name: Gauge(name, text, labels, registry=self._registry) for name, (text, labels) in named.items()}

    def _set_records(self, records: Records) -> None:
        gauges = self._on_record
        for state, count in records.jobs_by_state.items():
            gauges["plimsoll_jobs"].labels(state).set(count)
        for queue in records.queues:
            gauges["plimsoll_queue_waiting"].labels(queue.queue).set(queue.waiting)
            gauges["plimsoll_queue_oldest_seconds"].labels(queue.queue).set(queue.oldest_seconds)
        for outcome in records.outcomes:
            gauges["plimsoll_job_outcomes"].labels(outcome.kind, outcome.state).set(outcome.jobs)
        for group in records.accuracy:
            labels = (group.level, group.framework, group.family or "", group.gpu)
            gauges["plimsoll_prediction_measurements"].labels(*labels).set(group.count)
            gauges["plimsoll_prediction_median_error"].labels(*labels).set(group.median_absolute_relative_error)
            gauges["plimsoll_prediction_mean_error"].labels(*labels).set(group.mean_relative_error)

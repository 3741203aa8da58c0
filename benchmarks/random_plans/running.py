"""Traces run one after the other in a process of their own, which is replaced where it hangs, dies or has grown old."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.random_plans.draw import DrawnPlan

# What a step leaves behind in torch's caches and frozen heaps adds up.
TRACES_A_PROCESS = 25
MOST_SECONDS = 150.0
MOST_CHARACTERS = 400

Tracer = Callable[[DrawnPlan], dict[str, Any]]


def trace_one(plan: DrawnPlan) -> dict[str, Any]:
    """Return a plan's line."""
    from benchmarks.random_plans.tracing import traced_line

    return traced_line(plan)


def traced_lines(
    plans: Iterable[DrawnPlan], tracer: Tracer = trace_one, *, most_seconds: float = MOST_SECONDS
) -> Iterator[dict[str, Any]]:
    """Yield a line for each plan; one without a trace says why under `failed`."""
    worker: _Worker | None = None
    try:
        for plan in plans:
            if worker is None or worker.traces == TRACES_A_PROCESS:
                _end(worker)
                worker = _Worker(tracer)
            line = worker.line(plan, most_seconds)
            if line is None:
                _end(worker)
                worker = None
            yield line or {
                "number": plan.number,
                "failed": f"no trace within {most_seconds:.0f} s, or the process died",
            }
    finally:
        _end(worker)


class _Worker:
    """A process that traces what it is sent."""

    def __init__(self, tracer: Tracer) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, tracer), daemon=True)
        self._process.start()
        there.close()
        self.traces = 0

    def line(self, plan: DrawnPlan, most_seconds: float) -> dict[str, Any] | None:
        """Return a plan's line; None where none comes in time."""
        self.traces += 1
        self._here.send(plan)
        try:
            line: dict[str, Any] | None = self._here.recv() if self._here.poll(most_seconds) else None
        except EOFError:
            return None
        return line

    def end(self) -> None:
        """End the process, whatever it does."""
        self._here.close()
        self._process.kill()
        self._process.join()


def _end(worker: _Worker | None) -> None:
    if worker is not None:
        worker.end()


def _serve(connection: Connection, tracer: Tracer) -> None:
    """Answer plans with lines until the other side is gone."""
    while True:
        try:
            plan = connection.recv()
        except EOFError:
            return
        connection.send(_line(plan, tracer))


def _line(plan: DrawnPlan, tracer: Tracer) -> dict[str, Any]:
    try:
        return tracer(plan)
    except Exception as error:  # noqa: BLE001 - whatever is raised is this plan's result, and the next one's turn
        place = traceback.extract_tb(error.__traceback__)[-1]
        words = " ".join(str(error).split())[:MOST_CHARACTERS]
        where = f"{place.filename.rpartition('site-packages/')[2].rpartition('plimsoll/')[2]}:{place.lineno}"
        return {"number": plan.number, "failed": f"{type(error).__name__} at {where}: {words}"}

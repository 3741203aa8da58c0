"""The entry of a validation job, called in a child process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.service.worker.tasks import Report

LEVELS = ("count", "trace", "device")


def run(request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return the result of validating a plan at a level.

    `request` holds `level`, `kind` (`train` or `infer`), `plan_id`, `request` (the
    planning request), `model` (`name` and `config`) and `plan` (the answer's); for level
    `device` also `gpu` (the plan's) and `device` (`on` and `any_gpu_kind`).
    `report(done, total, unit, message)` tells how far it is. Raises
    `NotYetAvailable` for a layout that cannot be validated yet.
    """
    level, kind = request["level"], request["kind"]
    if level not in LEVELS:
        raise InvalidQuestion(f"Level {level!r} is none of {', '.join(LEVELS)}.", pointer="/level")
    if level == "count":
        from plimsoll.service.worker.proofs.count.task import count_weights

        return count_weights(request, report)
    if kind == "infer":
        return _serve(level, request, report)
    if level == "device":
        from plimsoll.service.worker.proofs.device.task import run_on_device

        return run_on_device(request, report)
    from plimsoll.service.worker.proofs.trace.task import trace_plan

    return trace_plan(request, report)


def _serve(level: str, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    from plimsoll.service.worker.proofs.serving import serve_on_device, trace_serving

    return trace_serving(request, report) if level == "trace" else serve_on_device(request, report)

"""The entry of a validation job, called in a child process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planners.errors import InvalidQuestion, NotYetAvailable

Report = Callable[[int, int, str, str], None]
LEVELS = ("count", "trace", "device")


def run(request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return the result of validating a plan at a level.

    `request` holds `level`, `kind` (`train` or `infer`), `plan_id`, `request` (the
    planning request), `model` (`name` and `config`) and `plan` (the answer's).
    `report(done, total, unit, message)` tells how far it is. Raises
    `NotYetAvailable` for a level, kind or layout that cannot be validated yet.
    """
    level, kind = request["level"], request["kind"]
    if level not in LEVELS:
        raise InvalidQuestion(f"Level {level!r} is none of {', '.join(LEVELS)}.", pointer="/level")
    if level == "count":
        from service.worker.dry_run.count import count_weights

        return count_weights(request, report)
    if kind != "train":
        raise NotYetAvailable("Serving plans are not validated at this level yet.", pointer="/level")
    if level == "device":
        raise NotYetAvailable("Validation on a device is not available yet.", pointer="/level")
    from service.worker.dry_run.trace import trace_plan

    return trace_plan(request, report)

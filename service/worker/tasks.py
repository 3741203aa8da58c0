"""What the workers can do: a job's kind, and the function that does it.

The functions are named, not imported: only the child process that runs one
loads it, and torch with it. Each has the shape

    run(request: Mapping[str, Any], report: Report) -> dict[str, Any]

where `request` is the job's own, the answer becomes the job's result (JSON, no
NaN), and `report(done, total, unit, message)` tells how far it is. A question
that makes no sense raises a `PlimsollError`; its code and detail become the
job's error.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Report: TypeAlias = Callable[[int, int, str, str], None]
TaskFunction: TypeAlias = Callable[[Mapping[str, Any], Report], dict[str, Any]]

TASKS: Mapping[str, str] = {
    "quantize": "plimsoll.service.worker.quantization.task:run",
    "validate": "plimsoll.service.worker.proofs.task:run",
}
"""Kind of job -> "module:function"."""

LIST_ACCELERATORS = "plimsoll.service.worker.devices.accelerators:run"
"""The task by which a worker learns what accelerators it has; no job's kind."""


def load_task(target: str) -> TaskFunction:
    """Return the function that "module:function" names.

    Raises ImportError or AttributeError when there is none, and ValueError for
    a name that is not of that form.
    """
    module_name, separator, function_name = target.partition(":")
    if not (module_name and separator and function_name):
        raise ValueError(f"A task is named 'module:function', not {target!r}.")
    function: TaskFunction = getattr(importlib.import_module(module_name), function_name)
    return function

"""What the workers of the fault tests do instead of quantizing: short jobs of all kinds, told apart by their seed.

`expected_end` says how each has to end, however often it is disturbed.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path
from typing import Any

# A job of each kind among twenty; the rest are short and good.
KINDS = {0: "crashes", 1: "takes too much memory", 2: "raises", 3: "is slow"}
KINDS_CYCLE = 20
SLOW_SECONDS = 2.0
SHORT_SECONDS = 0.05
STEPS = 10
TOO_MUCH_BYTES = 2**40

ERROR_CODES = {"crashes": "crashed", "takes too much memory": "out-of-memory", "raises": "task-failed"}


def kind_of(seed: int) -> str:
    """Return what kind of job a seed makes."""
    return KINDS.get(seed % KINDS_CYCLE, "is short")


def expected_code(seed: int) -> str | None:
    """Return the error that such a job has to end with, None for one that has to succeed."""
    return ERROR_CODES.get(kind_of(seed))


def quantize(request: dict[str, Any], report: Any) -> dict[str, Any]:
    """Do what the request's seed asks for."""
    seed = request["seed"]
    kind = kind_of(seed)
    if kind == "crashes":
        sys.stderr.flush()
        ctypes.string_at(0)
    if kind == "takes too much memory":
        return {"bytes": len(bytearray(TOO_MUCH_BYTES))}
    if kind == "raises":
        raise ValueError("This job always fails.")
    seconds = SLOW_SECONDS if kind == "is slow" else SHORT_SECONDS
    for step in range(STEPS):
        report(step, STEPS, "steps", f"step {step}")
        time.sleep(seconds / STEPS)
    return {"seed": seed}


def wait(request: dict[str, Any], report: Any) -> dict[str, Any]:
    """Report once, note the attempt in the file `notes`, and wait until the file `until` exists."""
    report(1, 2, "steps", "waiting")
    with Path(request["notes"]).open("a") as notes:
        notes.write("begun\n")
    while not Path(request["until"]).exists():
        time.sleep(0.02)
    return {"seed": request.get("seed", 0)}

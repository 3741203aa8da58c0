"""Compare predicted, traced and measured peaks on the accelerator at hand.

Run `python -m benchmarks.device --gpu h100-sxm-80gb` on a machine with such a
card, with words of case names to run only those; `--json FILE` keeps every
result whole. Each trace and each run has a process of its own. `--level trace`
leaves the device out, and needs none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.device.cases import CASES, Case
from benchmarks.device.table import table
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.service.ground.settings import Settings
from plimsoll.service.jobs.in_process import InProcess
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest, ValidationLevel

LEVELS: tuple[ValidationLevel, ...] = ("trace", "device")
# What one process may take of the host's memory and of time: our own choice, and ample for the cases.
HOST_BYTES = 64 << 30
SECONDS = 1800.0


async def compared(case: Case, gpu: str, levels: tuple[ValidationLevel, ...]) -> dict[str, Any]:
    """Return a case's plan, and its result or its refusal at each level."""
    service = InProcess(Settings(job_memory_bytes=HOST_BYTES, job_timeout_seconds=SECONDS))
    request_type = TrainRequest if case.kind == "train" else InferRequest
    row: dict[str, Any] = {"name": case.name, "kind": case.kind}
    try:
        body = await service.plan(request_type.model_validate(case.on(gpu)))
    except PlimsollError as refusal:
        return {**row, "refusal": refusal.detail}
    row["memory"] = body["plan"]["memory"]
    for level in levels:
        row[level] = await _proved(service, body["plan_id"], level)
    return row


async def _proved(service: InProcess, plan_id: str, level: ValidationLevel) -> Mapping[str, Any]:
    try:
        job = await service.prove(plan_id, level, lambda _progress: None)
    except PlimsollError as refusal:
        return {"refusal": refusal.detail}
    return job.result or {"refusal": (job.error or {}).get("detail", "no result")}


def main(arguments: list[str]) -> int:
    """Print the table of the cases whose names hold one of the words given, of all without any."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device", description=__doc__)
    parser.add_argument("words", nargs="*", help="parts of the names of cases")
    parser.add_argument("--gpu", default="h100-sxm-80gb", help="the catalogue's id of the card at hand")
    parser.add_argument("--level", choices=("both", *LEVELS), default="both")
    parser.add_argument("--json", type=Path, help="a file for every figure")
    given = parser.parse_args(arguments)
    levels = LEVELS if given.level == "both" else (given.level,)
    rows = []
    for case in CASES:
        if not given.words or any(word in case.name for word in given.words):
            rows.append(asyncio.run(compared(case, given.gpu, levels)))
            sys.stderr.write(f"{case.name}: done\n")
    sys.stdout.write(table(rows, given.gpu))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Workers whose quantizations are stand-ins: `python -m tests.faults.worker TASK CONCURRENCY`, and a kept one."""

from __future__ import annotations

import sys

from plimsoll.service.ground.settings import Settings
from plimsoll.service.worker.main import run_worker


def quantize(settings: Settings) -> None:
    """Run a worker of one job at a time, as `service.running.kept_process` starts it."""
    _run(settings, "quantize", 1)


def _run(settings: Settings, task: str, concurrency: int) -> None:
    run_worker(settings, ["cpu"], concurrency, tasks={"quantize": f"tests.faults.tasks:{task}"})


if __name__ == "__main__":
    _run(Settings(), sys.argv[1], int(sys.argv[2]))

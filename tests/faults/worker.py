"""A worker whose quantizations are stand-ins: `python -m tests.faults.worker TASK CONCURRENCY`."""

from __future__ import annotations

import sys

from plimsoll.service.ground.settings import Settings
from plimsoll.service.worker.main import run_worker


def main() -> None:
    task, concurrency = sys.argv[1], int(sys.argv[2])
    run_worker(Settings(), ["cpu"], concurrency, tasks={"quantize": f"tests.faults.tasks:{task}"})


if __name__ == "__main__":
    main()

"""How fast the processor itself works from one moment to the next: `python -m benchmarks.load.pace` prints it.

A virtual machine may get a half or a third of its processor's work for seconds at a time, with no steal counted: what
was measured as the most that a server carries is then more than it can carry a second later. So beside each load a
process of its own does a fixed piece of work now and then, and takes its processor time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

# A sample of some 2 ms ten times a second takes 2 % of a core.
SAMPLE_EVERY_SECONDS = 0.1
STEPS = 20_000
STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Sample:
    """When the fixed work was done, by `time.perf_counter`, and its processor time."""

    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Paces:
    """Samples in order of time."""

    samples: tuple[Sample, ...]

    def share(self, began: float, ended: float) -> float:
        """Return the mean pace of a stretch of time as a part of the fastest there was; raises ValueError without any.

        The fastest is the fifth percentile of all samples: single ones may be lucky.
        """
        within = [sample.seconds for sample in self.samples if began <= sample.at <= ended]
        if not within:
            raise ValueError("The processor's pace was not sampled in this stretch.")
        in_order = sorted(sample.seconds for sample in self.samples)
        return in_order[len(in_order) // 20] / fmean(within)


class PaceWatch:
    """Reads what the process that samples has written until now."""

    def __init__(self, written: Path) -> None:
        self._written = written

    def read(self) -> Paces:
        """Return all samples of whole lines."""
        lines = self._written.read_text(encoding="ascii").rpartition("\n")[0].splitlines()
        return Paces(tuple(Sample(*map(float, line.split())) for line in lines))


@contextmanager
def watched_pace() -> Iterator[PaceWatch]:
    """Sample the processor's pace meanwhile."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-pace-") as folder:
        written = Path(folder) / "samples"
        with written.open("w", encoding="ascii") as samples:
            process = subprocess.Popen([sys.executable, "-m", "benchmarks.load.pace"], stdout=samples)
        try:
            yield PaceWatch(written)
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)


def _fixed_work_seconds() -> float:
    began = time.thread_time()
    total = 0
    for step in range(STEPS):
        total += step * step % 7
    return time.thread_time() - began


def main() -> None:
    """Print the time and the fixed work's seconds until ended."""
    while True:
        print(time.perf_counter(), _fixed_work_seconds(), flush=True)
        time.sleep(SAMPLE_EVERY_SECONDS)


if __name__ == "__main__":
    main()

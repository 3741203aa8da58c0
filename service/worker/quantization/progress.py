"""How far a job is: bytes, their rate, and the time that is left at it."""

from __future__ import annotations

import time

from service.worker.quantization.sources import SourceTensor
from service.worker.tasks import Report

BYTES_PER_MEGABYTE = 1e6


class ByteProgress:
    """Counts the original bytes of finished tensors against a total."""

    def __init__(self, report: Report, total_bytes: int) -> None:
        """Begin at 0 and say so."""
        self._report = report
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._started = time.perf_counter()
        report(0, total_bytes, "bytes", "begun")

    def advance(self, tensor: SourceTensor) -> None:
        """Count a finished tensor."""
        self._done_bytes += tensor.stored_bytes
        bytes_per_second = self._done_bytes / max(time.perf_counter() - self._started, 1e-9)
        left_seconds = (self._total_bytes - self._done_bytes) / max(bytes_per_second, 1.0)
        self._report(
            self._done_bytes,
            self._total_bytes,
            "bytes",
            f"{tensor.name}, {bytes_per_second / BYTES_PER_MEGABYTE:.0f} MB/s, {left_seconds:.0f} s left",
        )

    def end(self) -> None:
        """Say that all is done."""
        self._report(self._total_bytes, self._total_bytes, "bytes", "done")

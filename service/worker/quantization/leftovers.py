"""What a killed child left of a job that ended without a result.

A child that is told to end clears its own work away. One that is deep in a long
operation, or has much to delete, is killed before it could, and no later
attempt takes up the work of a job that ended.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.service.ground.allowed_paths import allowed_path
from plimsoll.service.persistence.records import Job
from plimsoll.service.worker.quantization.checkpoints.output_folder import discard_partial


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Clears away what jobs left under the roots that they may write to."""

    output_roots: tuple[Path, ...]

    async def clear(self, job: Job) -> None:
        """Remove the hidden folder of a quantization's output, if there is one; raises OSError."""
        output = job.request.get("output")
        if job.kind != "quantize" or not isinstance(output, str):
            return
        try:
            path = allowed_path(output, self.output_roots, pointer="/output", kind="output")
        except PlimsollError:
            return  # The job was refused for it, and wrote nothing.
        await asyncio.to_thread(discard_partial, path)

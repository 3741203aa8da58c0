"""What every program's quantities are worked out of: layouts, their stages, and what a rank of each holds and keeps."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates
from plimsoll.planners.layouts.stages import StageRows
from plimsoll.planners.memory.activity import Activity
from plimsoll.planners.memory.holdings import Holdings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """Layouts of a job and their stages; `active` are the activations that stay on the device."""

    layouts: Candidates
    rows: StageRows
    job: Job
    held: Holdings
    active: Activity

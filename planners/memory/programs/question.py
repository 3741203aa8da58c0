"""What every program's quantities are worked out of: layouts, their stages, and what a rank of each holds and keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates
from plimsoll.planners.layouts.stages import StageRows, all_stages
from plimsoll.planners.memory.activation_offload import left_on_device
from plimsoll.planners.memory.activity import Activity, activity
from plimsoll.planners.memory.companions import with_companions
from plimsoll.planners.memory.holdings import Holdings, holdings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """Layouts of a job and their stages; of the activations that are `made`, the `active` ones stay on the device."""

    layouts: Candidates
    rows: StageRows
    job: Job
    held: Holdings
    active: Activity
    made: Activity


def question_of(layouts: Candidates, job: Job, stages: Callable[..., StageRows] = all_stages) -> Question:
    """Return what the programs of layouts are asked of some of their stages."""
    rows = stages(layouts, job)
    made = activity(layouts, rows, job)
    return Question(
        layouts=layouts,
        rows=rows,
        job=job,
        held=with_companions(holdings(layouts, rows, job), layouts, job),
        active=left_on_device(made, layouts, job),
        made=made,
    )

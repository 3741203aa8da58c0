"""One layout of a search as clients receive it: its row of the arrays, and what the job fixes for all rows."""

from __future__ import annotations

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates
from plimsoll.planners.plans import Layout


def layout_of(layouts: Candidates, index: int, job: Job) -> Layout:
    """Return the layout at `index` of a list of a job's layouts."""
    return layouts.layout(
        index,
        framework=job.profile.name,
        global_batch_size=job.global_batch_size,
        offload_target=job.offload_target,
        pipeline_schedule=job.pipeline_schedule,
    )

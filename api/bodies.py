"""Jobs as lists and answers show them."""

from __future__ import annotations

from pydantic import TypeAdapter

from plimsoll.service.jobs.answers import JobBody
from plimsoll.service.persistence.records import Job, Progress

NOT_BEGUN = Progress(done=0, total=0, unit="", message="")

JOB: TypeAdapter[JobBody] = TypeAdapter(JobBody)


def job_body(job: Job, *, with_estimate: bool = False) -> JobBody:
    """Return a job as clients see it, with what was estimated of it where they ask for the one job."""
    return JobBody(
        job_id=job.job_id,
        kind=job.kind,
        state=job.state,
        plan_id=job.plan_id,
        queue=job.queue,
        progress=job.progress or NOT_BEGUN,
        attempts=job.attempts,
        max_attempts=job.max_attempts,
        cancel_requested=job.cancel_requested,
        worker=job.worker,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        result=job.result,
        error=job.error,
        estimate=job.estimate if with_estimate else None,
    )

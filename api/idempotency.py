"""`Idempotency-Key`: the same POST sent twice queues one job, and the second answer says so."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header

from plimsoll.service.persistence.records import Job

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Any text of your own. The same key with the same request answers with the first job.",
    ),
]
REPLAYED_HEADER = "idempotency-replayed"
REPLAYED: dict[str, Any] = {
    "Idempotency-Replayed": {
        "description": "`true` where the idempotency key had queued this job before; absent otherwise.",
        "schema": {"type": "string", "const": "true"},
    }
}
LOCATION: dict[str, Any] = {
    "Location": {"description": "Where to look at what was made.", "schema": {"type": "string"}},
}


def replay_headers(job: Job) -> dict[str, str]:
    """Return the mark of an answer with a job that its key had queued before."""
    return {REPLAYED_HEADER: "true"} if job.is_replay else {}


def queued_headers(job: Job) -> dict[str, str]:
    """Return where a queued job is, and whether its key had queued it before."""
    return {"location": f"/jobs/{job.job_id}", **replay_headers(job)}

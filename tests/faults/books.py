"""The reckoning after a fault: what was accepted against what the database holds."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import psycopg

from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.persistence.records import FINAL_STATES
from tests.faults.client import Accepted
from tests.faults.tasks import expected_code

_JOBS = "SELECT job_id, state, attempts, max_attempts, result, error FROM jobs"
_ENDS = """
    SELECT job_id, count(*) FILTER (WHERE kind = 'state' AND data->>'state' = ANY(%s)),
           count(*) FILTER (WHERE kind = 'result')
      FROM job_events GROUP BY job_id
"""
_UNFINISHED = "SELECT count(*) FROM jobs WHERE NOT state = ANY(%s)"
_IN_QUEUE = "SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'run_job'"


@dataclass
class Books:
    """Counts of what became of the accepted jobs, and every entry that is wrong."""

    accepted: int
    succeeded: int = 0
    failed_by_policy: Counter[str] = field(default_factory=Counter)
    begun_again: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        failed = ", ".join(f"{count} {code}" for code, count in sorted(self.failed_by_policy.items())) or "none"
        return (
            f"{self.accepted} accepted = {self.succeeded} finished + {self.failed_by_policy.total()} failed by policy "
            f"({failed}); {self.begun_again} begun more than once, {len(self.wrong)} wrong"
        )


def unfinished(url: str) -> int:
    """Return how many jobs are still to be done, or stand in the queue."""
    with psycopg.connect(libpq_url(url)) as connection:
        waiting = connection.execute(_UNFINISHED, (list(FINAL_STATES),)).fetchone()
        queued = connection.execute(_IN_QUEUE).fetchone()
    return int(waiting[0]) + int(queued[0]) if waiting and queued else -1


def is_settled(url: str) -> bool:
    """Return whether nothing is left to do; False while the database cannot tell."""
    try:
        return unfinished(url) == 0
    except psycopg.OperationalError:
        return False


def settle(url: str, accepted: Accepted) -> Books:
    """Compare what was accepted with what is stored; every difference is an entry of `wrong`."""
    with psycopg.connect(libpq_url(url)) as connection:
        jobs = {row[0]: row[1:] for row in connection.execute(_JOBS)}
        ends = {row[0]: row[1:] for row in connection.execute(_ENDS, (list(FINAL_STATES),))}
        plans = dict(connection.execute("SELECT plan_id, answer::text FROM plans").fetchall())
    books = Books(accepted=len(accepted.jobs))
    for job_id in accepted.jobs.keys() ^ jobs.keys():
        books.wrong.append(f"job {job_id} is {'lost' if job_id in accepted.jobs else 'there though nobody asked'}")
    for job_id in accepted.jobs.keys() & jobs.keys():
        _settle_job(books, job_id, accepted.jobs[job_id], jobs[job_id], ends[job_id])
    for plan_id, answer in plans.items():
        if json.loads(answer)["plan_id"] != plan_id:
            books.wrong.append(f"plan {plan_id} is stored in part")
    for plan_id, body in accepted.plans.items():
        if plans.get(plan_id, "").encode() != body:
            books.wrong.append(f"plan {plan_id} is not stored as it was answered")
    return books


def _settle_job(books: Books, job_id: str, seed: int, row: tuple, ends: tuple[int, int]) -> None:
    state, attempts, max_attempts, result, error = row
    final_events, result_events = ends
    books.begun_again += attempts > 1
    if final_events != 1 or result_events != (state == "succeeded"):
        books.wrong.append(f"job {job_id} ended {final_events} times with {result_events} results")
    code = expected_code(seed)
    if state == "succeeded" and code is None and result == {"seed": seed}:
        books.succeeded += 1
    elif state == "failed" and (error["code"] == code or _is_exhausted(error, attempts, max_attempts)):
        books.failed_by_policy[error["code"]] += 1
    else:
        books.wrong.append(f"job {job_id} of seed {seed} is {state}: {error or result}")


def _is_exhausted(error: dict[str, str], attempts: int, max_attempts: int) -> bool:
    """Return whether a job's workers died under it as often as it may be begun."""
    return error["code"] == "attempts-exhausted" and attempts == max_attempts

"""Backup and restore as docs/reliability.md says, with the embedded server's own programs."""

from __future__ import annotations

import subprocess

import psycopg
import pytest

from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.upgrade import current_revision, upgrade
from plimsoll.service.running.postgres.binaries import find_postgres
from tests.service.persistence.factories import a_job, a_plan

ANSWER = '{"fits": true, "plan": {"step": {"seconds": 9.40000}}}'


def programs():
    folder = find_postgres(None)
    found = [folder / name for name in ("pg_dump", "pg_restore")]
    if not all(program.exists() for program in found):
        pytest.skip("this PostgreSQL comes without pg_dump")
    return [str(program) for program in found]


def run(*command):
    subprocess.run(command, check=True, capture_output=True, timeout=120)


async def test_a_dump_restores_plans_and_jobs_to_the_last_byte(database, database_url, empty_database_url, tmp_path):
    pg_dump, pg_restore = programs()
    await database.plans.put(a_plan("p", answer=ANSWER))
    job = await database.jobs.submit(a_job(plan_id="p"), idempotency_key="k", route="r")
    dump = str(tmp_path / "plimsoll.dump")
    run(pg_dump, "--format=custom", f"--file={dump}", libpq_url(database_url))
    run(pg_restore, "--no-owner", "--exit-on-error", f"--dbname={libpq_url(empty_database_url)}", dump)
    assert current_revision(empty_database_url) == current_revision(database_url)
    upgrade(empty_database_url)
    async with Database(empty_database_url) as restored:
        assert (await restored.plans.get("p")).answer == ANSWER
        # Still in the queue, its key still known, and a worker can begin it.
        assert await restored.jobs.get(job.job_id) == job
        again = await restored.jobs.submit(a_job(plan_id="p"), idempotency_key="k", route="r")
        assert again.job_id == job.job_id
        assert await restored.jobs.begin_attempt(job.job_id, "w") is not None
    with psycopg.connect(libpq_url(empty_database_url)) as connection:
        assert connection.execute("SELECT count(*) FROM procrastinate_jobs").fetchone() == (1,)

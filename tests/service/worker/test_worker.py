from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from plimsoll.service.ground.errors import DatabaseUnavailable
from plimsoll.service.ground.settings import Settings
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import NewJob
from plimsoll.service.persistence.upgrade import upgrade
from plimsoll.service.running.postgres.embedded import EmbeddedPostgres
from plimsoll.service.worker import main
from plimsoll.service.worker.devices import accelerators
from plimsoll.service.worker.devices.accelerator_kinds import accelerator_kind
from plimsoll.service.worker.main import detected_queues, run_worker
from plimsoll.service.worker.processes.attempt import REPORT_INTERVAL_SECONDS
from plimsoll.service.worker.quantization.checkpoints.output_folder import PARTIAL_SUFFIX
from tests.service.persistence.factories import a_plan
from tests.service.worker.conftest import PATIENCE_SECONDS


async def submit(database, request=None, *, max_attempts=3):
    job = NewJob(kind="quantize", queue="cpu", request=request or {}, max_attempts=max_attempts)
    return await database.jobs.submit(job, idempotency_key=None, route="/quantize")


def state_is(database, job_id, *states):
    async def check():
        job = await database.jobs.get(job_id)
        return job if job.state in states else None

    return check


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.slow
async def test_200_jobs_finish_exactly_once_though_a_worker_is_killed(database, start_worker, wait_until, tmp_path):
    file = tmp_path / "done"
    # Every job ends with a line in the file; the first takes long enough to be killed in its midst.
    jobs = [
        await submit(database, {"file": str(file), "number": number, "seconds": 5 if number == 0 else 0})
        for number in range(200)
    ]
    # The doomed one judges nobody.
    doomed = start_worker("record", concurrency=2, stalled_after_seconds=600)
    first = await wait_until(state_is(database, jobs[0].job_id, "running"))
    other = start_worker("record", concurrency=2, stalled_after_seconds=3)
    doomed.signal(signal.SIGKILL)

    async def all_finished():
        return (await database.jobs.counts())["succeeded"] == 200

    await wait_until(all_finished, 3 * PATIENCE_SECONDS)
    ended = [await database.jobs.get(job.job_id) for job in jobs]
    assert [job.result for job in ended] == [{"number": number} for number in range(200)]
    # One result event each: nothing was finished twice.
    events = [await database.jobs.events_after(job.job_id) for job in jobs]
    assert {sum(event.kind == "result" for event in of_one) for of_one in events} == {1}
    # The killed child wrote no line; the one beside it may just have written its own, and run again.
    lines = Counter(int(line) for line in file.read_text().split())
    assert set(lines) == set(range(200))
    assert sum(lines.values()) <= 201
    assert ended[0].attempts == 2
    assert f"job {jobs[0].job_id} recovered: worker {first.worker} missed its heartbeat" in other.log


async def test_a_running_job_is_cancelled_and_its_child_ended(database, start_worker, wait_until, tmp_path):
    job = await submit(database, {"pid_file": str(tmp_path / "pid")})
    start_worker("wait")
    await wait_until((tmp_path / "pid").exists)
    asked = await database.jobs.request_cancel(job.job_id)
    assert asked.state == "running"
    ended = await wait_until(state_is(database, job.job_id, "cancelled", "failed", "succeeded"))
    assert ended.state == "cancelled"
    assert is_dead(int((tmp_path / "pid").read_text()))


async def test_a_cancelled_job_that_is_deaf_leaves_nothing_half_written(database, start_worker, wait_until, tmp_path):
    partial = tmp_path / f".made{PARTIAL_SUFFIX}"
    partial.mkdir()
    (partial / "shard").touch()
    job = await submit(database, {"pid_file": str(tmp_path / "pid"), "output": str(tmp_path / "made")})
    start_worker("ignore_sigterm", output_roots=f'["{tmp_path}"]')
    await wait_until((tmp_path / "pid").exists)
    await database.jobs.request_cancel(job.job_id)
    await wait_until(state_is(database, job.job_id, "cancelled"))
    assert is_dead(int((tmp_path / "pid").read_text()))
    await wait_until(lambda: not partial.exists())


async def test_a_waiting_job_that_is_cancelled_is_never_begun(database, start_worker, wait_until):
    cancelled = await submit(database)
    assert (await database.jobs.request_cancel(cancelled.job_id)).state == "cancelled"
    later = await submit(database)
    start_worker("echo")
    await wait_until(state_is(database, later.job_id, "succeeded"))
    assert (await database.jobs.get(cancelled.job_id)).attempts == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_worker_that_is_told_to_stop_hands_its_job_back(number, database, start_worker, wait_until, tmp_path):
    job = await submit(database, {"pid_file": str(tmp_path / "pid"), "until": str(tmp_path / "go")}, max_attempts=1)
    first = start_worker("wait")
    await wait_until((tmp_path / "pid").exists)
    first.signal(number)
    assert first.process.wait(PATIENCE_SECONDS) == 0
    assert is_dead(int((tmp_path / "pid").read_text()))
    assert (await database.jobs.get(job.job_id)).state == "queued"
    # Being told to stop is no failure: the only attempt it had is not used up.
    (tmp_path / "go").touch()
    start_worker("wait")
    ended = await wait_until(state_is(database, job.job_id, "succeeded", "failed"))
    assert (ended.state, ended.attempts) == ("succeeded", 2)


async def test_a_worker_that_was_paused_too_long_cannot_write_its_result(database, start_worker, wait_until, tmp_path):
    go = tmp_path / "go"
    job = await submit(database, {"pid_file": str(tmp_path / "pid"), "until": str(go)})
    paused = start_worker("wait")
    await wait_until((tmp_path / "pid").exists)
    first_child = int((tmp_path / "pid").read_text())
    paused.signal(signal.SIGSTOP)
    (tmp_path / "pid").unlink()
    other = start_worker("wait")
    await wait_until((tmp_path / "pid").exists)
    second_child = int((tmp_path / "pid").read_text())
    go.touch()
    ended = await wait_until(state_is(database, job.job_id, "succeeded"))
    assert ended.result["pid"] == second_child
    # Its child went on, so that a result waits in the pipe when the worker wakes up.
    await wait_until(lambda: is_dead(first_child))
    paused.signal(signal.SIGCONT)

    # It reads the result first and is refused, or looks first and finds its job lost: either ends the attempt.
    await wait_until(lambda: paused.events("result refused") or paused.events("job lost"))
    after = await database.jobs.get(job.job_id)
    assert after == ended
    assert after.attempts == 2
    assert sum(event.kind == "result" for event in await database.jobs.events_after(job.job_id)) == 1
    assert "recovered" in other.log
    # It is of use again: the next job may be anyone's, so let it be the only one left.
    assert other.stop() == 0
    next_job = await submit(database, {"until": str(go)})
    await wait_until(state_is(database, next_job.job_id, "succeeded"))


async def test_a_paused_worker_ends_its_child_once_another_has_the_job(database, start_worker, wait_until, tmp_path):
    go = tmp_path / "go"
    job = await submit(database, {"pid_file": str(tmp_path / "pid"), "until": str(go)})
    # It is patient itself: once it goes on, the other one is not to seem dead to it, however busy the machine is.
    paused = start_worker("wait", stalled_after_seconds=600)
    await wait_until((tmp_path / "pid").exists)
    first_child = int((tmp_path / "pid").read_text())
    (tmp_path / "pid").unlink()
    paused.signal(signal.SIGSTOP)
    start_worker("wait", stalled_after_seconds=2)
    await wait_until((tmp_path / "pid").exists)
    paused.signal(signal.SIGCONT)
    await wait_until(lambda: is_dead(first_child))
    assert (await database.jobs.get(job.job_id)).state == "running"
    go.touch()
    ended = await wait_until(state_is(database, job.job_id, "succeeded"))
    assert (ended.attempts, ended.result["pid"] == first_child) == (2, False)


async def test_what_would_fail_again_is_not_tried_again(database, start_worker, wait_until):
    codes = {
        "raise_value_error": "task-failed",
        "raise_invalid_question": "invalid-question",
        "allocate": "out-of-memory",
        "write_garbage": "invalid-output",
    }
    jobs = {task: await submit(database, {"task": task, "bytes": 2**31}) for task in codes}
    worker = start_worker("play", concurrency=2, job_memory_bytes=2**30)
    ended = {
        task: await wait_until(state_is(database, job.job_id, "failed", "succeeded")) for task, job in jobs.items()
    }
    assert {task: job.error["code"] for task, job in ended.items()} == codes
    assert {job.attempts for job in ended.values()} == {1}
    assert worker.stop() == 0


async def test_a_job_that_takes_too_long_is_not_tried_again(database, start_worker, wait_until):
    job = await submit(database)
    start_worker("wait", job_timeout_seconds=1)
    ended = await wait_until(state_is(database, job.job_id, "failed", "succeeded"))
    assert (ended.error["code"], ended.attempts) == ("timed-out", 1)


async def test_a_job_whose_child_crashed_is_begun_again(database, start_worker, wait_until, tmp_path):
    job = await submit(database, {"file": str(tmp_path / "crashed")})
    start_worker("crash_at_first")
    ended = await wait_until(state_is(database, job.job_id, "failed", "succeeded"))
    assert (ended.state, ended.attempts, ended.result) == ("succeeded", 2, {"attempts": 2})


async def test_a_job_whose_child_always_crashes_fails_after_its_attempts(database, start_worker, wait_until):
    job = await submit(database, max_attempts=2)
    start_worker("crash")
    ended = await wait_until(state_is(database, job.job_id, "failed", "succeeded"))
    assert (ended.attempts, ended.error["code"], ended.error["attempts"]) == (2, "crashed", 2)
    assert "SIGSEGV" in ended.error["detail"]


async def test_a_job_whose_workers_all_die_fails_and_says_so(database, start_worker, wait_until, tmp_path):
    job = await submit(database, {"pid_file": str(tmp_path / "pid")}, max_attempts=1)
    doomed = start_worker("wait")
    await wait_until((tmp_path / "pid").exists)
    doomed.signal(signal.SIGKILL)
    start_worker("wait")
    ended = await wait_until(state_is(database, job.job_id, "failed"))
    assert ended.error["code"] == "attempts-exhausted"
    assert ended.worker in ended.error["detail"]


async def test_progress_is_written_four_times_a_second_at_most(database, start_worker, wait_until):
    # 40 reports over two seconds or more: one in a quarter of a second is written at most, the first and the last.
    job = await submit(database, {"steps": 40, "seconds": 0.05})
    start_worker("count")
    ended = await wait_until(state_is(database, job.job_id, "succeeded"))
    assert (ended.progress.done, ended.progress.total, ended.progress.message) == (40, 40, "step 40")
    events = await database.jobs.events_after(job.job_id)
    seconds = (ended.finished_at - ended.started_at).total_seconds()
    assert 1 <= sum(event.kind == "progress" for event in events) <= seconds / REPORT_INTERVAL_SECONDS + 2
    assert [event.kind for event in events[-2:]] == ["result", "state"]


async def test_a_validation_goes_on_record_beside_its_plan(database, start_worker, wait_until):
    plan = a_plan()
    await database.plans.put(plan)
    new = NewJob(kind="validate", queue="cpu", plan_id=plan.plan_id, request={"level": "trace"})
    job = await database.jobs.submit(new, idempotency_key=None, route="/validate")
    start_worker("echo")
    ended = await wait_until(state_is(database, job.job_id, "succeeded", "failed"))
    (measurement,) = (await database.measurements.page()).items
    assert (measurement.job_id, measurement.plan_id, measurement.level) == (job.job_id, plan.plan_id, "trace")
    assert (measurement.relative_error, measurement.gpu, measurement.source) == (0.05, plan.gpu, ended.worker)


@pytest.mark.slow
async def test_a_database_that_goes_away_and_comes_back_costs_no_job(start_worker, wait_until, tmp_path):
    with EmbeddedPostgres(tmp_path / "own", durable=False) as server:
        upgrade(server.url)
        go = tmp_path / "go"
        async with Database(server.url) as database:
            running = await submit(database, {"pid_file": str(tmp_path / "pid"), "until": str(go)})
            worker = start_worker("wait", url=server.url)
            await wait_until((tmp_path / "pid").exists)
            server.stop()
            go.touch()
            await asyncio.sleep(2)
            server.start()
            ended = await wait_until(state_is(database, running.job_id, "succeeded", "failed"))
            assert (ended.state, ended.attempts) == ("succeeded", 1)
            later = await submit(database, {"until": str(go)})
            await wait_until(state_is(database, later.job_id, "succeeded"))
        assert worker.process.poll() is None
        assert worker.events("database unavailable")
        assert worker.stop() == 0


def test_accelerators_are_told_by_kind_and_memory(monkeypatch):
    card = SimpleNamespace(name="NVIDIA H200", total_memory=150_754_820_096)
    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1, get_device_properties=lambda index: card)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert accelerators.seen_by_torch()["accelerators"] == [
        {"name": "NVIDIA H200", "kind": "h200", "memory_bytes": 150_754_820_096}
    ]


def test_a_machine_without_torch_has_no_accelerators(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert accelerators.seen_by_torch() == {"accelerators": [], "reason": "torch is not installed"}


def test_a_driver_is_known_by_its_library_or_its_device(tmp_path):
    # libc stands for a driver's library: it is there wherever Python is.
    assert accelerators.has_driver(cuda="libc.so.6", rocm=tmp_path / "none")
    assert accelerators.has_driver(cuda="libnone.so.1", rocm=tmp_path)
    assert not accelerators.has_driver(cuda="libnone.so.1", rocm=tmp_path / "none")


async def test_a_worker_with_accelerators_serves_their_queues_too(monkeypatch):
    monkeypatch.setattr(main, "LIST_ACCELERATORS", "tests.service.worker.sample_tasks:list_two_accelerators")
    assert await detected_queues(2**30) == ("cpu", "gpu", "gpu:h100", "gpu:l4")


async def test_a_worker_that_cannot_tell_its_accelerators_serves_the_cpu_queue(monkeypatch):
    monkeypatch.setattr(main, "LIST_ACCELERATORS", "tests.service.worker.sample_tasks:crash")
    assert await detected_queues(2**30) == ("cpu",)


async def test_a_worker_without_accelerators_serves_the_cpu_queue():
    assert await detected_queues(8 * 2**30) == ("cpu",)


async def test_a_worker_needs_a_database():
    with pytest.raises(DatabaseUnavailable, match="PLIMSOLL_DATABASE_URL"):
        run_worker(Settings(database_url=None))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla T4", "t4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA", "unknown"),
    ],
)
def test_the_kind_of_an_accelerator_is_the_telling_word_of_its_name(name, kind):
    assert accelerator_kind(name) == kind

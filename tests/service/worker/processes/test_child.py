from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from plimsoll.planners.ground.units import GIB, MIB
from plimsoll.service.worker.processes import child as child_module
from plimsoll.service.worker.processes.child import PROJECT_ROOT, ChildLimits, ChildOutcome, run_child
from plimsoll.service.worker.processes.child_main import MAX_RESULT_BYTES

# Nothing here takes as long but on a machine that stands still.
PATIENCE_SECONDS = 240.0


async def run(name: str, request: dict | None = None, **overrides) -> ChildOutcome:
    limits = {"memory_bytes": GIB, "seconds": PATIENCE_SECONDS, **overrides.pop("limits", {})}
    target = f"tests.service.worker.sample_tasks:{name}"
    return await run_child(target, request or {}, limits=ChildLimits(**limits), **overrides)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(condition, seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.02)


async def test_the_result_of_a_task_is_returned_from_another_process():
    outcome = await run("echo", {"text": "größer"})
    assert outcome.kind == "succeeded"
    assert outcome.result["request"] == {"text": "größer"}
    assert outcome.result["pid"] != os.getpid()
    assert outcome.error is None


async def test_a_request_larger_than_a_pipe_reaches_the_task():
    # A pipe holds 64 KiB; this request is a MiB.
    outcome = await run("echo", {"text": "x" * MIB})
    assert len(outcome.result["request"]["text"]) == MIB


async def test_progress_is_passed_on_and_the_last_report_always_arrives():
    seen = []
    outcome = await run("count", {"steps": 5}, on_progress=seen.append)
    assert outcome.kind == "succeeded"
    assert (seen[-1].done, seen[-1].total, seen[-1].unit, seen[-1].message) == (5, 5, "steps", "step 5")
    assert [progress.done for progress in seen] == sorted({progress.done for progress in seen})


async def test_reports_that_come_too_fast_are_dropped():
    # 20,000 reports, one in 0.1 s at most, and the first and the last.
    seen = []
    outcome = await run("count", {"steps": 20_000}, on_progress=seen.append)
    assert 2 <= len(seen) <= outcome.seconds / 0.1 + 2


async def test_what_a_task_prints_is_no_message():
    outcome = await run("print_a_lot")
    assert (outcome.kind, outcome.result) == ("succeeded", {"printed": True})


async def test_a_tasks_exception_is_its_error_with_the_last_lines_printed():
    outcome = await run("raise_value_error")
    assert (outcome.kind, outcome.error.code) == ("failed", "task-failed")
    assert outcome.error.detail == "ValueError: the scale is zero"
    assert "before the error" in outcome.error.log
    assert outcome.error.log.endswith("ValueError: the scale is zero")


async def test_a_refusal_is_reported_without_a_trace():
    outcome = await run("refuse")
    assert (outcome.error.code, outcome.error.detail) == ("not-yet-available", "That is not traced yet.")
    assert outcome.error.log == ""


async def test_a_question_that_makes_no_sense_keeps_its_code():
    outcome = await run("raise_invalid_question")
    assert (outcome.kind, outcome.error.code) == ("failed", "invalid-question")
    assert outcome.error.detail == "The model has no layers."


async def test_an_allocation_above_the_limit_is_out_of_memory():
    outcome = await run("allocate", {"bytes": 2 * GIB}, limits={"memory_bytes": GIB})
    assert (outcome.kind, outcome.error.code) == ("oom", "out-of-memory")
    assert "1.00 GiB" in outcome.error.detail


async def test_an_allocation_below_the_limit_succeeds():
    outcome = await run("allocate", {"bytes": GIB // 2}, limits={"memory_bytes": GIB})
    assert outcome.kind == "succeeded"


async def test_the_limit_on_data_stops_an_allocation_too():
    outcome = await run("allocate", {"bytes": 2 * GIB}, limits={"memory_bytes": GIB, "limit_address_space": False})
    assert outcome.kind == "oom"


async def test_the_peak_is_the_childs_own():
    # 64 MiB touched, above an interpreter of less than 64 MiB, whatever this process holds.
    outcome = await run("hold", {"bytes": 64 * MIB})
    assert 64 * MIB < outcome.peak_host_bytes < 128 * MIB


async def test_a_task_that_takes_too_long_is_stopped():
    outcome = await run("wait", limits={"seconds": 0.5})
    assert (outcome.kind, outcome.error.code) == ("timeout", "timed-out")
    assert "500 ms" in outcome.error.detail
    # It would wait for ever.
    assert outcome.seconds >= 0.5


async def test_a_task_deaf_to_sigterm_is_killed(monkeypatch):
    monkeypatch.setattr(child_module, "TERMINATE_GRACE_SECONDS", 0.5)
    stop = asyncio.Event()
    # It reports once it is deaf, and would wait for ever.
    outcome = await run("ignore_sigterm", stop=stop, on_progress=lambda _: stop.set())
    assert outcome.kind == "cancelled"
    assert outcome.seconds >= 0.5


async def test_a_crash_is_told_by_its_signal():
    outcome = await run("crash")
    assert (outcome.kind, outcome.error.code) == ("crashed", "crashed")
    assert "SIGSEGV" in outcome.error.detail
    assert "about to crash" in outcome.error.log


async def test_a_child_killed_from_outside_has_crashed_and_its_log_is_kept(tmp_path):
    running = asyncio.create_task(run("wait", {"pid_file": str(tmp_path / "pid")}))
    await until((tmp_path / "pid").exists)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    outcome = await running
    assert outcome.kind == "crashed"
    assert "runs out of memory" in outcome.error.detail


async def test_an_end_without_a_word_is_no_result():
    outcome = await run("exit_silently")
    assert (outcome.kind, outcome.error.code) == ("failed", "no-result")
    assert "status 3" in outcome.error.detail


@pytest.mark.parametrize("name", ["write_garbage", "answer_twice"])
async def test_anything_but_the_expected_messages_is_invalid_output(name):
    outcome = await run(name)
    assert (outcome.kind, outcome.error.code) == ("failed", "invalid-output")


async def test_a_line_without_end_is_cut_off_and_the_child_ended():
    outcome = await run("write_without_end")
    assert (outcome.kind, outcome.error.code) == ("failed", "result-too-large")


async def test_a_whole_result_counts_though_the_child_crashes_afterwards():
    outcome = await run("answer_and_crash")
    assert (outcome.kind, outcome.result) == ("succeeded", {"done": True})


@pytest.mark.parametrize("name", ["return_text", "return_nan", "return_nul"])
async def test_a_result_that_no_column_can_hold_is_refused(name):
    outcome = await run(name)
    assert (outcome.kind, outcome.error.code) == ("failed", "invalid-result")


# {"result": {"text": ""}} is 11 + 9 + 2 + 2 = 24 bytes, and the text comes on top.
@pytest.mark.parametrize(("size", "kind"), [(MAX_RESULT_BYTES - 24, "succeeded"), (MAX_RESULT_BYTES - 23, "failed")])
async def test_a_result_may_be_as_large_as_the_limit_and_no_larger(size, kind):
    outcome = await run("return_bytes", {"bytes": size})
    assert outcome.kind == kind
    assert outcome.error is None or outcome.error.code == "result-too-large"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no.such.module:run", "No module named"),
        ("json:no_such_function", "no_such_function"),
        ("json", "module:function"),
    ],
)
async def test_a_task_that_cannot_be_loaded_fails_with_the_reason(target, said):
    outcome = await run_child(target, {}, limits=ChildLimits(memory_bytes=GIB, seconds=PATIENCE_SECONDS))
    assert (outcome.kind, outcome.error.code) == ("failed", "task-failed")
    assert said in outcome.error.detail


async def test_stopping_ends_the_child(tmp_path):
    stop = asyncio.Event()
    running = asyncio.create_task(run("wait", {"pid_file": str(tmp_path / "pid")}, stop=stop))
    await until((tmp_path / "pid").exists)
    pid = int((tmp_path / "pid").read_text())
    stop.set()
    outcome = await running
    assert (outcome.kind, outcome.result, outcome.error) == ("cancelled", None, None)
    assert not is_alive(pid)


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_stopped_child_clears_its_work_away_unless_it_goes_on_elsewhere(tmp_path, goes_on, monkeypatch):
    monkeypatch.setattr(child_module, "TERMINATE_GRACE_SECONDS", 60.0)  # However slow the machine.
    stop, work = asyncio.Event(), tmp_path / "work"
    request = {"pid_file": str(tmp_path / "pid"), "work_file": str(work)}
    running = asyncio.create_task(run("work_half_way", request, stop=stop, goes_on_elsewhere=lambda: goes_on))
    await until((tmp_path / "pid").exists)
    stop.set()
    assert (await running).kind == "cancelled"
    assert work.exists() is goes_on


async def test_abandoning_the_run_kills_the_child(tmp_path):
    running = asyncio.create_task(run("wait", {"pid_file": str(tmp_path / "pid")}))
    await until((tmp_path / "pid").exists)
    pid = int((tmp_path / "pid").read_text())
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await until(lambda: not is_alive(pid))


async def test_what_a_task_leaves_running_is_killed_with_its_group():
    outcome = await run("leave_a_descendant")
    assert outcome.kind == "succeeded"
    await until(lambda: not is_alive(outcome.result["pid"]))


async def test_the_child_knows_no_database_and_is_the_first_to_be_killed(monkeypatch):
    monkeypatch.setenv("PLIMSOLL_DATABASE_URL", "postgresql://user:secret@host/name")
    outcome = await run("read_environment")
    assert outcome.result["database_url"] is None
    assert int(outcome.result["oom"]) == 1000


async def test_no_child_outlives_its_worker(tmp_path):
    pid_file = tmp_path / "pid"
    program = (
        "import asyncio; from plimsoll.service.worker.processes.child import *;"
        " asyncio.run(run_child('tests.service.worker.sample_tasks:wait',"
        f" {{'pid_file': {str(pid_file)!r}}}, limits=ChildLimits(memory_bytes=2**30, seconds=600)))"
    )
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cwd=PROJECT_ROOT)
    try:
        await until(pid_file.exists)
        child_pid = int(pid_file.read_text())
        assert is_alive(child_pid)
    finally:
        worker.kill()
        await worker.wait()
    await until(lambda: not is_alive(child_pid))

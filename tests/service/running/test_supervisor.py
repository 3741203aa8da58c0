"""The whole service as `make serve` starts it, with real processes that are killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.load.server import free_port
from plimsoll.service.running import supervisor

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("supervisor")]

# Parts of their command lines.
API, WORKER = " ".join(supervisor.API), " ".join(supervisor.WORKER)
READY_SECONDS = 360.0
GONE_SECONDS = 180.0
KILLED_SECONDS = 5.0
JOB = {"model": {"config": {"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 2}}}

SLOW_JOB = {"model": {"config": {"model_type": "gpt2", "vocab_size": 8192, "n_embd": 1024, "n_layer": 8, "n_head": 8}}}


class Service:
    """A supervised service on a port of its own."""

    def __init__(self, data_folder: Path) -> None:
        self.port = free_port()
        self.data_folder = data_folder
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PLIMSOLL_")}
        environment["PLIMSOLL_DATA_DIR"] = str(data_folder)
        self.log = data_folder.with_suffix(".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "plimsoll.cli.main", "serve", "--port", str(self.port)],
                env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60.0, trust_env=False)

    def wait_until_ready(self) -> None:
        wait_for(self._is_ready, READY_SECONDS, lambda: self.log.read_text())

    def _is_ready(self) -> bool:
        try:
            return self.client.get("/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def child(self, part: str) -> psutil.Process:
        """Return the supervisor's own child whose command line holds `part`."""
        children = psutil.Process(self.process.pid).children()
        return next(child for child in children if part in words_of(child))

    def family(self) -> list[psutil.Process]:
        me = psutil.Process(self.process.pid)
        return [me, *me.children(recursive=True)]

    def quantize(self, job=JOB) -> str:
        return self.client.post("/quantize", json={**job, "scheme": "nf4"}).raise_for_status().json()["job"]["job_id"]

    def state(self, job_id: str) -> str:
        return self.client.get(f"/jobs/{job_id}").raise_for_status().json()["state"]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(GONE_SECONDS)
            finally:
                self.process.kill()
        self.client.close()


def wait_for(condition, seconds: float, describe=lambda: "") -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {describe()[-3000:]}")
        time.sleep(0.1)


def are_gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Return a service of which any part may be killed, and which the next test finds whole again."""
    running = Service(tmp_path_factory.mktemp("supervised") / "data")
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.stop()


def test_ctrl_c_ends_everything_with_status_zero(tmp_path):
    ending = Service(tmp_path / "data")
    try:
        ending.wait_until_ready()
        family = ending.family()
        ending.process.send_signal(signal.SIGINT)
        assert ending.process.wait(GONE_SECONDS) == 0
        assert are_gone(family[1:])
    finally:
        ending.stop()


def test_an_api_that_is_killed_before_it_answers_is_started_again(tmp_path):
    starting = Service(tmp_path / "data")
    try:
        wait_for(lambda: has_killed_child(starting, API), READY_SECONDS)
        starting.wait_until_ready()
    finally:
        starting.stop()


def has_killed_child(running: Service, part: str) -> bool:
    """Kill a part if it is there; a process that has just been forked is not that part yet."""
    found = [child for child in psutil.Process(running.process.pid).children() if part in words_of(child)]
    for child in found:
        child.kill()
    return bool(found)


def words_of(process):
    """Return a process's command line; nothing of one that ended since it was found."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@pytest.mark.parametrize("part", [API, WORKER, "postgres"])
def test_a_killed_part_is_started_again_and_jobs_still_run(service, part):
    runs_after_the_end_of(service.child(part), service)


def runs_after_the_end_of(killed: psutil.Process, service: Service) -> None:
    killed.kill()
    wait_for(lambda: are_gone([killed]), GONE_SECONDS)
    service.wait_until_ready()
    job_id = service.quantize()
    wait_for(lambda: service.state(job_id) == "succeeded", READY_SECONDS, lambda: service.log.read_text())


def test_a_database_that_cannot_be_started_ends_nothing_and_is_tried_again(service):
    # As on a full disk: it is down, and cannot come up until someone made room.
    version = service.data_folder / "postgres" / "data" / "PG_VERSION"
    whole = version.read_text()
    version.write_text("9.6\n")
    service.child("postgres").kill()
    wait_for(lambda: "could not be started" in service.log.read_text(), READY_SECONDS, service.log.read_text)
    assert not service._is_ready()
    version.write_text(whole)
    service.wait_until_ready()
    assert service.process.poll() is None


def test_a_killed_supervisor_leaves_no_process_and_the_next_start_keeps_the_data(tmp_path):
    first = Service(tmp_path / "data")
    first.wait_until_ready()
    job_id = first.quantize(SLOW_JOB)
    wait_for(lambda: first.state(job_id) == "running", READY_SECONDS, lambda: first.log.read_text())
    family = first.family()
    ours = [process for process in family if "plimsoll." in words_of(process)]
    first.client.close()
    first.process.kill()
    first.process.wait()
    # A worker that was told to stop, not killed, waits ten seconds for the database that went with the supervisor.
    wait_for(lambda: are_gone(ours), KILLED_SECONDS, lambda: str(ours))
    wait_for(lambda: are_gone(family), GONE_SECONDS, lambda: str(family))
    second = Service(tmp_path / "data")
    try:
        second.wait_until_ready()
        wait_for(lambda: second.state(job_id) == "succeeded", READY_SECONDS, lambda: second.log.read_text())
    finally:
        second.stop()


def test_a_taken_port_is_named_and_ends_the_start(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environment = {**os.environ, "PLIMSOLL_DATA_DIR": str(tmp_path / "data")}
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "plimsoll.cli.main", "serve", "--port", str(port)]
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=READY_SECONDS, check=False
        )
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"Plimsoll cannot start: Port {port} ")
    # Nothing was started that would have to be stopped.
    assert not (tmp_path / "data").exists()

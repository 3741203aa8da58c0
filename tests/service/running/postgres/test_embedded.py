from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from plimsoll.service.ground.errors import DatabaseUnavailable
from plimsoll.service.running.postgres.embedded import EmbeddedPostgres
from plimsoll.service.running.postgres.leftovers import server_processes

CHECKOUT = Path(__file__).parents[4]

# Owns a server until it is killed, and says when it does.
OWNER = """
import sys, time
from pathlib import Path
from plimsoll.service.running.postgres.embedded import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]), durable=False).start()
print(server.process_id, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Return a folder whose database was made once; each test finds it stopped and leaves it so."""
    root = tmp_path_factory.mktemp("embedded") / "postgres"
    with EmbeddedPostgres(root, durable=False):
        return root


def execute(server: EmbeddedPostgres, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


@contextlib.contextmanager
def owner(root: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield another process that owns the server on `root`, and the server's process id."""
    command = [sys.executable, "-c", OWNER, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def wait_until(holds: Callable[[], bool], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_was_committed_is_there_after_a_restart(root):
    with EmbeddedPostgres(root, durable=False) as server:
        execute(server, "CREATE TABLE kept AS SELECT 7 AS value")
    with EmbeddedPostgres(root, durable=False) as server:
        assert execute(server, "SELECT value FROM kept") == [(7,)]


def test_nothing_runs_once_it_is_stopped(root):
    server = EmbeddedPostgres(root, durable=False).start()
    assert server_processes(root / "data") != []
    server.stop()
    assert server_processes(root / "data") == []
    assert server.process_id is None


def test_starting_and_stopping_twice_changes_nothing(root):
    server = EmbeddedPostgres(root, durable=False).start()
    process_id = server.process_id
    assert server.start().process_id == process_id
    server.stop()
    server.stop()


def test_the_server_listens_on_no_port_and_only_its_owner_may_enter(root):
    with EmbeddedPostgres(root, durable=False) as server:
        assert execute(server, "SHOW listen_addresses") == [("",)]
    assert root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("durable", "fsync"), [(True, "on"), (False, "off")])
def test_only_a_server_for_tests_does_not_wait_for_the_disk(root, durable, fsync):
    with EmbeddedPostgres(root, durable=durable) as server:
        assert execute(server, "SHOW fsync") == [(fsync,)]


def test_data_that_was_opened_to_others_is_closed_to_them_again(root):
    with EmbeddedPostgres(root):
        pass
    root.chmod(0o777)
    (root / "data").chmod(0o777)
    with EmbeddedPostgres(root) as server:
        assert server.process_id is not None
        assert stat.S_IMODE((root / "data").stat().st_mode) == 0o700


def test_a_second_owner_is_refused_and_told_who_the_first_is(root):
    with owner(root) as (holder, _), pytest.raises(DatabaseUnavailable, match=f"in use by process {holder.pid} "):
        EmbeddedPostgres(root, durable=False).start()


def test_a_second_owner_in_the_same_process_is_refused_too(root):
    with (
        EmbeddedPostgres(root, durable=False),
        pytest.raises(DatabaseUnavailable, match="in use"),
        EmbeddedPostgres(root, durable=False),
    ):
        pass


def test_the_server_goes_when_its_owner_is_killed(root):
    with owner(root) as (holder, server_id):
        assert server_id in server_processes(root / "data")
        holder.kill()
        holder.wait()
        wait_until(lambda: server_processes(root / "data") == [])


def test_the_next_owner_starts_at_once_after_the_first_was_killed(root):
    with owner(root) as (holder, _):
        holder.kill()
        holder.wait()
        with EmbeddedPostgres(root, durable=False) as server:
            assert execute(server, "SELECT 1") == [(1,)]


def test_a_killed_server_is_started_again_with_what_was_committed(root):
    with EmbeddedPostgres(root) as server:
        address = server.url
        execute(server, "CREATE TABLE survived AS SELECT 7 AS value")
        assert server.process_id is not None
        os.kill(server.process_id, signal.SIGKILL)
        wait_until(lambda: server.process_id is None)
        server.start()
        assert server.url == address
        assert execute(server, "SELECT value FROM survived") == [(7,)]


def test_a_server_killed_together_with_its_owner_is_recovered(root):
    with owner(root) as (holder, server_id):
        os.kill(server_id, signal.SIGKILL)
        holder.kill()
        holder.wait()
        with EmbeddedPostgres(root, durable=False) as server:
            assert execute(server, "SELECT 1") == [(1,)]


def test_a_server_that_outlived_its_owner_is_shut_down_first(root):
    server = EmbeddedPostgres(root, durable=False).start()
    first_id, first_process = server.process_id, server._process
    assert server._lock is not None
    # As if the kernel had not told it: the lock is free and the server runs.
    server._lock.close()
    with EmbeddedPostgres(root, durable=False) as second:
        assert second.process_id != first_id
        assert first_process is not None
        assert first_process.wait(60) == 0


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param("99", id="torn"),
        pytest.param("not a number\n\n", id="garbage"),
        pytest.param(f"{os.getpid()}\n/elsewhere\n1\n5432\n", id="of a process that is no server"),
        pytest.param("4194304\n/elsewhere\n1\n5432\n", id="of no process"),
    ],
)
def test_a_pid_file_of_any_content_does_not_stop_the_start(root, content):
    (root / "data" / "postmaster.pid").write_text(content)
    with EmbeddedPostgres(root, durable=False) as server:
        assert execute(server, "SELECT 1") == [(1,)]


def test_a_pid_file_that_names_a_zombie_does_not_stop_the_start(root):
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    wait_until(lambda: Path(f"/proc/{zombie.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    (root / "data" / "postmaster.pid").write_text(f"{zombie.pid}\n{root / 'data'}\n1\n5432\n")
    with EmbeddedPostgres(root, durable=False) as server:
        assert execute(server, "SELECT 1") == [(1,)]
    zombie.wait()


def test_a_torn_pid_file_of_a_running_server_does_not_hide_it(root):
    with owner(root) as (_, server_id):
        pid_file = root / "data" / "postmaster.pid"
        whole = pid_file.read_text()
        pid_file.write_text("")
        assert server_id in server_processes(root / "data")
        pid_file.write_text(whole)


def test_a_database_that_was_only_half_made_is_made_anew(tmp_path):
    half = tmp_path / "postgres" / "data.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(tmp_path / "postgres", durable=False) as server:
        assert execute(server, "SELECT 1") == [(1,)]
    assert not half.exists()


def test_a_long_path_gets_a_short_socket_that_is_gone_afterwards(tmp_path):
    # The socket's own name and the slash take 14 of the 107 bytes: 94 are one too many.
    root = tmp_path / ("x" * (94 - len(os.fsencode(tmp_path)) - 1))
    with EmbeddedPostgres(root, durable=False) as server:
        folder = Path(psycopg.conninfo.conninfo_to_dict(server.conninfo)["host"])
        assert folder != root
        assert folder.stat().st_mode & 0o777 == 0o700
        assert execute(server, "SELECT 1") == [(1,)]
    assert not folder.exists()


def test_the_longest_path_that_a_socket_may_have_is_used(tmp_path):
    root = tmp_path / ("x" * (93 - len(os.fsencode(tmp_path)) - 1))
    with EmbeddedPostgres(root, durable=False) as server:
        assert psycopg.conninfo.conninfo_to_dict(server.conninfo)["host"] == str(root)


def test_a_folder_reached_through_a_link_is_the_same_folder(root, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(root)
    with owner(root), pytest.raises(DatabaseUnavailable, match="in use"):
        EmbeddedPostgres(link, durable=False).start()


def test_data_that_another_version_made_is_refused_with_the_servers_own_words(root):
    version = root / "data" / "PG_VERSION"
    whole = version.read_text()
    version.write_text("9.6\n")
    with pytest.raises(DatabaseUnavailable, match="incompatible"):
        EmbeddedPostgres(root, durable=False).start()
    version.write_text(whole)


def test_a_folder_without_programs_is_refused(root, tmp_path):
    with pytest.raises(DatabaseUnavailable, match="does not hold the programs"):
        EmbeddedPostgres(root, durable=False, binaries=tmp_path).start()


def test_a_start_that_failed_leaves_the_folder_free(root, tmp_path):
    with contextlib.suppress(DatabaseUnavailable):
        EmbeddedPostgres(root, durable=False, binaries=tmp_path).start()
    with EmbeddedPostgres(root, durable=False) as server:
        assert server.process_id is not None


def test_another_thread_than_the_main_one_may_not_start_it(root):
    raised: list[BaseException] = []

    def start() -> None:
        try:
            EmbeddedPostgres(root, durable=False).start()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])

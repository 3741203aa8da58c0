"""A PostgreSQL of our own: started with the service, gone with it, and its data kept.

The server is a direct child that the kernel shuts down when its owner dies, so
that a `kill -9` leaves nothing running. One lock says who owns the folder; whoever
holds it may take for granted that no one else starts a server there, so whatever
an earlier owner left, a pid file of any content or processes still at work,
is cleared away before the next start. It listens on a socket in the folder, which
only its owner may enter, and on no port.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote

import psycopg

from plimsoll.service.ground.errors import DatabaseUnavailable
from plimsoll.service.running.postgres.account import Account, choose_account, hand_over
from plimsoll.service.running.postgres.binaries import find_postgres
from plimsoll.service.running.postgres.leftovers import clear_leftovers

_SUPERUSER = "postgres"
_DATABASE = "postgres"
_SOCKET_NAME = ".s.PGSQL.5432"

# sizeof(sockaddr_un.sun_path) is 108 on Linux, and the last byte is a zero.
_LONGEST_SOCKET_PATH_BYTES = 107

# After a crash the log is replayed first, which takes as long as there is log: up to
# max_wal_size, 1 GB, at some 10 MB/s on a slow disk.
_START_TIMEOUT_SECONDS = 120.0
_FAST_STOP_TIMEOUT_SECONDS = 30.0
_IMMEDIATE_STOP_TIMEOUT_SECONDS = 10.0
_POLL_SECONDS = 0.02

_LARGEST_LOG_BYTES = 10 * 2**20
_SHOWN_LOG_BYTES = 2000

_OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # After a crash its files go to the disk before it answers, and one call for all of them took 1.7 s where one for
    # each took 7.5 (2 cores, load 13): https://www.postgresql.org/docs/18/runtime-config-error-handling.html
    "recovery_init_sync_method": "syncfs",
}
# For data that nobody will miss: a crash of the machine may lose or break all of it.
_OPTIONS_NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


def running_server_url(root: Path) -> str:
    """Return where the server of another process is that runs on this folder; raises DatabaseUnavailable."""
    try:
        # Its fifth line is the folder of the socket: https://www.postgresql.org/docs/18/storage-file-layout.html
        socket_folder = (root / "data" / "postmaster.pid").read_text(encoding="utf-8").splitlines()[4]
    except (OSError, IndexError) as error:
        raise DatabaseUnavailable(
            f"No database runs in {root}. Start `plimsoll serve`, or name a server in PLIMSOLL_DATABASE_URL."
        ) from error
    return _url(Path(socket_folder))


def _url(socket_folder: Path) -> str:
    return f"postgresql+psycopg://{_SUPERUSER}@/{_DATABASE}?host={quote(str(socket_folder), safe='')}"


class EmbeddedPostgres:
    """A PostgreSQL server on one folder, owned by this process while it runs."""

    def __init__(self, root: Path, *, durable: bool = True, binaries: Path | None = None) -> None:
        """Name the folder; nothing is made or started yet.

        `durable=False` never waits for the disk: for tests. `binaries` is the folder of `postgres` and
        `initdb`; without it one is looked for.
        """
        # The process table knows folders by their real names.
        self._root = root.resolve()
        self._data = self._root / "data"
        self._log = self._root / "postgres.log"
        self._durable = durable
        self._binaries = binaries
        self._lock: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_folder = self._root

    @property
    def url(self) -> str:
        """Return where the server is, for SQLAlchemy."""
        return _url(self._socket_folder)

    @property
    def conninfo(self) -> str:
        """Return where the server is, for psycopg and libpq."""
        return psycopg.conninfo.make_conninfo(host=str(self._socket_folder), user=_SUPERUSER, dbname=_DATABASE)

    @property
    def process_id(self) -> int | None:
        """Return the server's process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> Self:
        """Start the server and return once it answers; do nothing where it runs.

        Starts it again where it died. Raises DatabaseUnavailable when another process owns the
        folder, when there is no PostgreSQL to start, or when it does not come up.
        """
        if self.process_id is not None:
            return self
        _check_surroundings()
        self._own_folder()
        try:
            programs = find_postgres(self._binaries)
            account = choose_account(self._data, programs)
            clear_leftovers(self._data)
            hand_over(self._root, account)
            if not (self._data / "PG_VERSION").exists():
                self._make_data(programs, account)
            self._choose_socket_folder(account)
            self._launch(programs, account)
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Shut the server down, closing its connections, and give the folder back."""
        if self._process is not None:
            for number, timeout_seconds in (
                (signal.SIGINT, _FAST_STOP_TIMEOUT_SECONDS),
                (signal.SIGQUIT, _IMMEDIATE_STOP_TIMEOUT_SECONDS),
            ):
                self._process.send_signal(number)
                try:
                    self._process.wait(timeout_seconds)
                    break
                except subprocess.TimeoutExpired:
                    continue
            else:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._socket_folder != self._root:
            shutil.rmtree(self._socket_folder, ignore_errors=True)
            self._socket_folder = self._root
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _own_folder(self) -> None:
        """Take the lock on the folder; the kernel gives it back when this process is gone."""
        if self._lock is not None:
            return
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            # Whoever may enter may connect as the database's superuser.
            self._root.chmod(0o700)
            if self._data.exists():
                # PostgreSQL starts on no data that others may enter, however they were opened to them.
                self._data.chmod(0o700)
            lock = (self._root / "owner.lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise DatabaseUnavailable(
                f"The database cannot be kept in {self._root}: {error.strerror}. Give this user the folder "
                f"(sudo chown -R {os.geteuid()} {self._root}), or set PLIMSOLL_DATA_DIR to another one."
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            lock.close()
            raise DatabaseUnavailable(
                f"The database in {self._root} is in use by {holder}. Stop that, or set PLIMSOLL_DATA_DIR to another "
                "folder."
            ) from error
        lock.truncate(0)
        lock.write(f"process {os.getpid()} ({' '.join(sys.argv)[:200]})\n")
        lock.flush()
        self._lock = lock

    def _make_data(self, programs: Path, account: Account) -> None:
        """Make the data folder under another name, so that one half made never counts."""
        unfinished = self._root / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [str(programs / "initdb"), "--pgdata", str(unfinished), "--username", _SUPERUSER]
        command += ["--auth", "trust", "--encoding", "UTF8", "--no-locale", "--no-instructions"]
        if not self._durable:
            command.append("--no-sync")
        made = subprocess.run(
            account.running(command),
            cwd=self._root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if made.returncode != 0:
            said = made.stdout.decode(errors="replace")[-_SHOWN_LOG_BYTES:]
            raise DatabaseUnavailable(f"initdb could not make {self._data}: {said}")
        unfinished.rename(self._data)

    def _choose_socket_folder(self, account: Account) -> None:
        """Put the socket beside the data, or in a short private folder where its path would be too long."""
        if len(os.fsencode(self._root / _SOCKET_NAME)) <= _LONGEST_SOCKET_PATH_BYTES:
            return
        if self._socket_folder != self._root and self._socket_folder.exists():
            return  # started again: its clients know it by this address
        # An owner that was killed left its own: the note says where.
        note = self._root / "socket-folder"
        if note.exists():
            shutil.rmtree(note.read_text(encoding="utf-8"), ignore_errors=True)
        self._socket_folder = Path(tempfile.mkdtemp(prefix="plimsoll-"))
        note.write_text(str(self._socket_folder), encoding="utf-8")
        hand_over(self._socket_folder, account)

    def _launch(self, programs: Path, account: Account) -> None:
        options = _OPTIONS | {"unix_socket_directories": str(self._socket_folder)}
        if not self._durable:
            options |= _OPTIONS_NOT_DURABLE
        command = [str(programs / "postgres"), "-D", str(self._data)]
        command += [f"--{name}={value}" for name, value in options.items()]
        if self._log.exists() and self._log.stat().st_size > _LARGEST_LOG_BYTES:
            self._log.replace(self._log.with_suffix(".log.1"))
        # Whoever made it is gone, though its number may belong to a zombie or to another by now.
        (self._socket_folder / f"{_SOCKET_NAME}.lock").unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                account.running(command),
                cwd=self._root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Away from the terminal's group: Ctrl-C is for the owner, who stops us in order.
                process_group=0,
            )

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while True:
            try:
                psycopg.connect(self.conninfo, connect_timeout=2).close()
            except psycopg.OperationalError as error:
                if self.process_id is None:
                    raise DatabaseUnavailable(f"PostgreSQL ended at its start: {self._end_of_log()}") from error
                if time.monotonic() > deadline:
                    raise DatabaseUnavailable(
                        f"PostgreSQL did not answer within {_START_TIMEOUT_SECONDS:.0f} s: {self._end_of_log()}"
                    ) from error
                time.sleep(_POLL_SECONDS)
            else:
                return

    def _end_of_log(self) -> str:
        return self._log.read_bytes()[-_SHOWN_LOG_BYTES:].decode(errors="replace").strip()


def _check_surroundings() -> None:
    if sys.platform != "linux":
        raise DatabaseUnavailable(
            "The embedded PostgreSQL runs on Linux alone. Name a server in PLIMSOLL_DATABASE_URL instead."
        )
    # The kernel shuts the server down when the thread that started it ends.
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("Start the embedded PostgreSQL from the main thread, which lives as long as the process.")

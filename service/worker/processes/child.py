"""One task in a child process, so that running out of memory, a hang or a crash costs one job.

The child has its own process group, a limit on its memory and on its time, and
dies with the worker. Whatever becomes of it is a `ChildOutcome`; nothing that
a task does raises here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import plimsoll
from plimsoll.planners.ground.figures import duration
from plimsoll.planners.ground.units import GIB
from plimsoll.service.worker.processes.child_main import (
    LOG_LINES,
    MAX_RESULT_BYTES,
    MAX_TEXT_CHARACTERS,
    OUT_OF_MEMORY_PHRASES,
    clean_text,
)

OutcomeKind = Literal["succeeded", "failed", "oom", "timeout", "crashed", "cancelled"]

TERMINATE_GRACE_SECONDS = 1.0
"""Between SIGTERM and SIGKILL. A cancelled job is to end within 2 s, of which noticing it takes up to 0.75."""
DRAIN_SECONDS = 2.0
"""How long to read on after the child is gone, should a stray descendant hold the pipe open."""
MAX_LINE_BYTES = MAX_RESULT_BYTES + 4_096
"""A result and what is around it."""
LOG_BYTES = 16 * 1024
READ_BYTES = 2**16
PROJECT_ROOT = Path(plimsoll.__path__[0]).parent
# A task has no business with any of these, which may hold passwords, and its environment shows in /proc.
SECRET_VARIABLES = ("PLIMSOLL_DATABASE_URL", "PLIMSOLL_HUB_URL", "PLIMSOLL_TRACES_URL", "PLIMSOLL_API_KEY")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLimits:
    """What a child may use."""

    memory_bytes: int
    seconds: float
    limit_address_space: bool = True
    """Whether RLIMIT_AS holds it, or RLIMIT_DATA, which CUDA needs: it reserves far more address space than memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProgress:
    """How far a task says it is."""

    done: int
    total: int
    unit: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildError:
    """Why there is no result."""

    code: str
    detail: str
    log: str
    """The last lines of what the child printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOutcome:
    """What became of a child."""

    kind: OutcomeKind
    result: Mapping[str, Any] | None = None
    error: ChildError | None = None
    peak_host_bytes: int
    """The most memory it held at once. Where a killed child could not say, the
    system's figure, which is never less than this process's own size."""
    seconds: float


async def run_child(
    target: str,
    request: Mapping[str, Any],
    *,
    limits: ChildLimits,
    on_progress: Callable[[ChildProgress], None] = lambda _: None,
    stop: asyncio.Event | None = None,
    goes_on_elsewhere: Callable[[], bool] = lambda: False,
    variables: Mapping[str, str] | None = None,
) -> ChildOutcome:
    """Run the task "module:function" in a child process and return what became of it.

    Setting `stop` ends the child and makes the outcome `cancelled`. It is asked to
    end, and clears its half-done work away; where `goes_on_elsewhere`, another attempt
    takes that work up, and the child is killed so that it leaves it. `variables` are
    added to its environment. Call it from the event loop of the main thread: the
    child dies with the thread that started it.
    """
    child = _Child(target, request, limits, on_progress, variables or {})
    try:
        return await child.outcome(stop or asyncio.Event(), goes_on_elsewhere)
    finally:
        child.kill()  # Reached with the child alive only when this coroutine was itself cancelled.


class _Output:
    """What the child says: takes bytes, keeps the answer and passes progress on."""

    def __init__(self, on_progress: Callable[[ChildProgress], None]) -> None:
        self._on_progress = on_progress
        self._rest = bytearray()
        self.answer: Mapping[str, Any] | None = None
        self.fault: tuple[str, str] | None = None
        """Code and detail of the first thing that should not have been said."""

    def feed(self, data: bytes) -> None:
        """Take what was read; after a fault nothing counts any more."""
        if self.fault:
            return
        self._rest += data
        if b"\n" in data:
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                if not self.fault:
                    self._take(bytes(line))
        if len(self._rest) > MAX_LINE_BYTES:
            self.fault = ("result-too-large", f"The task wrote more than the {MAX_RESULT_BYTES:,} bytes of a result.")

    def close(self) -> None:
        """Take note that nothing follows."""
        if self._rest and not self.fault:
            self._invalid(bytes(self._rest))

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            if self.answer is not None or not isinstance(message, dict):
                raise ValueError(line)
            if "progress" in message:
                self._on_progress(_progress(message["progress"]))
            elif isinstance(message.get("result"), dict) or isinstance(message["error"], dict):
                self.answer = message
        except (ValueError, KeyError, TypeError):
            self._invalid(line)

    def _invalid(self, line: bytes) -> None:
        shown = clean_text(line[:100].decode(errors="replace"))
        self.fault = ("invalid-output", f"The task wrote something that is no message to the worker: {shown!r}.")


def _progress(fields: Mapping[str, Any]) -> ChildProgress:
    return ChildProgress(
        done=int(fields["done"]), total=int(fields["total"]), unit=str(fields["unit"]), message=str(fields["message"])
    )


class _Child:
    """A running child process; everything about it in one place."""

    def __init__(
        self,
        target: str,
        request: Mapping[str, Any],
        limits: ChildLimits,
        on_progress: Callable[[ChildProgress], None],
        variables: Mapping[str, str],
    ) -> None:
        self._limits = limits
        self._output = _Output(on_progress)
        self._output_fault = asyncio.Event()
        self._log = bytearray()
        self._started_at = time.monotonic()
        self._process = _start(target, request, limits, variables)
        self._ended: asyncio.Future[tuple[int, resource.struct_rusage]] = asyncio.get_running_loop().create_future()
        self._is_reaped = False
        self._reap_lock = threading.Lock()
        # A thread each, not the shared pool: waiting takes as long as the task does.
        threading.Thread(target=self._reap, args=(asyncio.get_running_loop(),), daemon=True).start()

    async def outcome(self, stop: asyncio.Event, goes_on_elsewhere: Callable[[], bool]) -> ChildOutcome:
        """Wait for the end, bring it about where it is due, and say what it was."""
        readers = [
            asyncio.ensure_future(_read(self._process.stdout, self._take_output)),
            asyncio.ensure_future(_read(self._process.stderr, self._take_log)),
        ]
        try:
            cause = await self._first_cause(stop)
            if cause == "stop" and goes_on_elsewhere():
                self.kill()
            elif cause != "ended":
                await self._terminate()
            exit_code, usage = await self._ended
            await asyncio.wait(readers, timeout=DRAIN_SECONDS)
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        self._output.close()
        return self._judge(cause, exit_code, usage)

    async def _first_cause(self, stop: asyncio.Event) -> str:
        """Return why to go on: the child "ended", or has to: "stop", "fault" or "timeout"."""
        waits: list[asyncio.Future[Any]] = [
            self._ended,
            asyncio.ensure_future(stop.wait()),
            asyncio.ensure_future(self._output_fault.wait()),
        ]
        try:
            await asyncio.wait(waits, timeout=self._limits.seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits[1:]:
                wait.cancel()
        if self._ended.done():
            return "ended"
        if stop.is_set():
            return "stop"
        return "fault" if self._output_fault.is_set() else "timeout"

    async def _terminate(self) -> None:
        self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait((self._ended,), timeout=TERMINATE_GRACE_SECONDS)
        if not done:
            self.kill()

    def kill(self) -> None:
        """End the child and its descendants now, if they live."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        # Under the lock, so that the id cannot have passed to another process.
        with self._reap_lock:
            if not self._is_reaped:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, number)

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        pid = self._process.pid
        if sys.platform == "linux":
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            self.kill()  # What it left behind: its id is still taken, so its group is still its own.
            with self._reap_lock:
                _, status, usage = os.wait4(pid, 0)
                self._is_reaped = True
        else:
            _, status, usage = os.wait4(pid, 0)
            with self._reap_lock:
                self._is_reaped = True
        self._process.returncode = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile; nobody waits.
            loop.call_soon_threadsafe(self._set_ended, self._process.returncode, usage)

    def _set_ended(self, exit_code: int, usage: resource.struct_rusage) -> None:
        if not self._ended.done():
            self._ended.set_result((exit_code, usage))

    def _take_output(self, data: bytes) -> None:
        self._output.feed(data)
        if self._output.fault:
            self._output_fault.set()

    def _take_log(self, data: bytes) -> None:
        self._log += data
        del self._log[:-LOG_BYTES]

    def _judge(self, cause: str, exit_code: int, usage: resource.struct_rusage) -> ChildOutcome:
        log = _last_lines(bytes(self._log))
        answer = self._output.answer or {}
        kind, code, detail = self._verdict(cause, exit_code, log)
        return ChildOutcome(
            kind=kind,
            result=answer["result"] if kind == "succeeded" else None,
            error=None if kind in ("succeeded", "cancelled") else ChildError(code=code, detail=detail, log=log),
            peak_host_bytes=int(answer.get("peak_host_bytes") or _peak_bytes(usage)),
            seconds=time.monotonic() - self._started_at,
        )

    def _verdict(self, cause: str, exit_code: int, log: str) -> tuple[OutcomeKind, str, str]:
        """Return the kind of the end, and the code and detail of the error that it is."""
        if cause == "stop":
            return "cancelled", "", ""
        if self._output.fault:
            return "failed", *self._output.fault
        answer = self._output.answer or {}
        if "result" in answer:
            return "succeeded", "", ""  # However it ended: libraries crash and hang while they are unloaded.
        if cause == "timeout":
            return "timeout", "timed-out", f"The task took longer than its limit of {duration(self._limits.seconds)}."
        if "error" in answer:
            error = answer["error"]
            code, detail = str(error.get("code")), str(error.get("detail"))
            return ("oom", code, self._memory_detail(detail)) if code == "out-of-memory" else ("failed", code, detail)
        return self._silent_verdict(exit_code, log)

    def _silent_verdict(self, exit_code: int, log: str) -> tuple[OutcomeKind, str, str]:
        """Judge a child that ended without a word: by its exit code and its last lines."""
        if exit_code != 0 and any(phrase in log for phrase in OUT_OF_MEMORY_PHRASES):
            return "oom", "out-of-memory", self._memory_detail(log.splitlines()[-1])
        if exit_code >= 0:
            return "failed", "no-result", f"The task ended with exit status {exit_code} and without a result."
        name = signal.Signals(-exit_code).name
        killer = " The kernel does this when the machine runs out of memory." if name == "SIGKILL" else ""
        return "crashed", "crashed", f"The task was ended by {name}.{killer}"

    def _memory_detail(self, said: str) -> str:
        limit = f"The task may use {self._limits.memory_bytes / GIB:.2f} GiB of host memory."
        return f"{said[:MAX_TEXT_CHARACTERS]} {limit}"


def _start(
    target: str, request: Mapping[str, Any], limits: ChildLimits, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}
    environment.update(variables)
    paths = (str(PROJECT_ROOT), environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    limits_json = json.dumps(
        {
            "memory_bytes": limits.memory_bytes,
            "limit_address_space": limits.limit_address_space,
            "parent_pid": os.getpid(),
        }
    )
    # A file, not a pipe: a child that does not read cannot block the worker.
    with tempfile.TemporaryFile() as stdin:
        stdin.write(json.dumps(request).encode())
        stdin.seek(0)
        return subprocess.Popen(
            [sys.executable, "-m", "plimsoll.service.worker.processes.child_main", target, limits_json],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )


async def _read(pipe: IO[bytes] | None, take: Callable[[bytes], None]) -> None:
    """Pass on what comes through a pipe until it is closed."""
    if pipe is None:
        return
    reader = asyncio.StreamReader(limit=READ_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        while data := await reader.read(READ_BYTES):
            take(data)
    finally:
        transport.close()


def _last_lines(log: bytes) -> str:
    return "\n".join(log.replace(b"\0", b"").decode(errors="replace").splitlines()[-LOG_LINES:])


def _peak_bytes(usage: resource.struct_rusage) -> int:
    # getrusage(2): KiB on Linux; bytes on macOS.
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)

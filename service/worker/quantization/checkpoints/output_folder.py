"""The folder that a quantized checkpoint is written to: hidden until it is whole, resumable until then.

Files are written into a folder beside the output whose name begins with a dot,
and that folder is renamed when everything in it is on the disk. A shard counts
once its record stands beside it; a process that is killed leaves both, and the
next one that is asked for the same goes on after the last such shard. Any other
end removes the folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plimsoll.planners.ground.errors import InvalidQuestion

PARTIAL_SUFFIX = ".plimsoll-partial"
IDENTITY_FILE = "identity.json"
RECORD_SUFFIX = ".record.json"
REPORT_FILE = "quantization_report.json"
SUMS_FILE = "SHA256SUMS"
UNFINISHED_SUFFIX = ".unfinished"
POINTER = "/output"
HASHED_BYTES = 2**20


class OutputFolder:
    """The hidden folder of one output, held by this process alone."""

    def __init__(self, output: Path, partial: Path) -> None:
        self._output = output
        self._partial = partial

    def file(self, name: str) -> Path:
        """Return where a file is written; it takes its own name by `keep`."""
        return self._partial / (name + UNFINISHED_SUFFIX)

    def records(self, names: list[str]) -> dict[str, Mapping[str, Any]]:
        """Return the records of the shards that are whole: up to the first that is not there or not as recorded."""
        found: dict[str, Mapping[str, Any]] = {}
        for name in names:
            record = _json_in(self._partial / (name + RECORD_SUFFIX))
            path = self._partial / name
            if record is None or not path.is_file() or sha256(path) != record["sha256"]:
                break
            found[name] = record
        return found

    def keep(self, name: str, record: Mapping[str, Any]) -> None:
        """Give a written shard its name, then its record."""
        self.file(name).rename(self._partial / name)
        self.write_json(name + RECORD_SUFFIX, record)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a small file at once or not at all."""
        self.write_bytes(name, json.dumps(content, indent=2, allow_nan=False).encode() + b"\n")

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a small file at once or not at all."""
        _write_durably(self.file(name), content)
        self.file(name).rename(self._partial / name)
        _sync_folder(self._partial)

    def sums(self, known: Mapping[str, str]) -> dict[str, str]:
        """Return the SHA-256 of every file that will be published; those in `known` are not read again."""
        names = sorted(path.name for path in self._partial.iterdir())
        names = [name for name in names if name != IDENTITY_FILE and not name.endswith(RECORD_SUFFIX)]
        return {name: known.get(name) or sha256(self._partial / name) for name in names}

    def publish(self) -> None:
        """Make the folder the output; raises `InvalidQuestion` where that came to exist meanwhile."""
        for path in self._partial.iterdir():
            if path.name == IDENTITY_FILE or path.name.endswith((RECORD_SUFFIX, UNFINISHED_SUFFIX)):
                path.unlink()
        _sync_folder(self._partial)
        _refuse_existing(self._output)
        self._partial.rename(self._output)
        _sync_folder(self._output.parent)


@contextmanager
def output_folder(output: Path, identity: Mapping[str, Any]) -> Iterator[OutputFolder]:
    """Yield the hidden folder of `output`, as far as an earlier process with the same identity came.

    On any error, or a signal that became an exception, it is removed; only a
    process that is killed leaves it. Raises `InvalidQuestion` where the output
    exists, its parent does not, or another process writes it.
    """
    _refuse_existing(output)
    if not output.parent.is_dir():
        raise InvalidQuestion("The folder that the output is to stand in does not exist.", pointer=POINTER)
    partial = _partial(output)
    lock = _locked(partial)
    try:
        folder = OutputFolder(output, partial)
        _begin(folder, partial, identity)
        yield folder
    finally:
        # After `publish` it is gone already.
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)


def discard_partial(output: Path) -> None:
    """Remove the hidden folder that a killed process left of an output, unless another process writes it now.

    Raises OSError.
    """
    partial = _partial(output)
    try:
        lock = _opened(partial)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(partial)
    except BlockingIOError:
        return
    finally:
        os.close(lock)


def published_result(output: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result in an output that was made for the same identity, or None.

    A process may be killed after it published and before it could say so.
    """
    report = _json_in(output / REPORT_FILE)
    if report is None or report.get("identity") != identity:
        return None
    result: dict[str, Any] = report["result"]
    return result


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while content := file.read(HASHED_BYTES):
            digest.update(content)
    return digest.hexdigest()


def _partial(output: Path) -> Path:
    return output.with_name(f".{output.name}{PARTIAL_SUFFIX}")


def _refuse_existing(output: Path) -> None:
    if os.path.lexists(output):
        raise InvalidQuestion("The output exists already; name a folder that does not.", pointer=POINTER)


def _opened(partial: Path) -> int:
    """Return a descriptor of the folder, for which no link may stand; raises FileNotFoundError."""
    return os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _locked(partial: Path) -> int:
    """Return the descriptor that holds the folder's lock until it is closed."""
    while True:
        partial.mkdir(mode=0o755, exist_ok=True)
        try:
            lock = _opened(partial)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise InvalidQuestion("Another job is writing this output.", pointer=POINTER) from error
        # Whoever held it may have removed the folder between the two lines above.
        if partial.exists() and os.path.samestat(os.fstat(lock), partial.stat()):
            return lock
        os.close(lock)


def _begin(folder: OutputFolder, partial: Path, identity: Mapping[str, Any]) -> None:
    if _json_in(partial / IDENTITY_FILE) == identity:
        return
    for path in partial.iterdir():
        path.unlink()
    folder.write_json(IDENTITY_FILE, identity)


def _json_in(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

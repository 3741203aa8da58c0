"""What the hub has answered before: in memory, and in a folder that outlives the process."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from plimsoll.service.ground.recently_used import RecentlyUsed
from plimsoll.service.ground.untrusted_files import UnusableFile, whole_content

log = structlog.get_logger(__name__)

MOST_IN_MEMORY = 256
MOST_IN_MEMORY_BYTES = 32 * 2**20
MOST_FILES = 1_024
MOST_FILE_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    content: bytes
    fetched_at: float


class HubCache:
    """Keeps one file for each address; safe between threads and processes, for files are replaced whole.

    A file's own time of change is when it was fetched. Anything wrong with the
    folder only costs another fetch, and is logged.
    """

    def __init__(self, folder: Path, *, lasting_seconds: float) -> None:
        self._folder = folder
        self._lasting_seconds = lasting_seconds
        self._recent: RecentlyUsed[str, _Kept] = RecentlyUsed(
            MOST_IN_MEMORY, most_bytes=MOST_IN_MEMORY_BYTES, size_bytes=lambda kept: len(kept.content)
        )

    def get(self, address: str, *, is_lasting: bool) -> bytes | None:
        """Return what was kept for an address; None where it is nothing, or too old unless `is_lasting`."""
        kept = self._recent.get(address) or self._read(address)
        if kept is None:
            return None
        age_seconds = time.time() - kept.fetched_at
        # A time in the future was stamped by another clock and says nothing.
        if not is_lasting and not 0 <= age_seconds < self._lasting_seconds:
            return None
        self._recent.put(address, kept)
        return kept.content

    def put(self, address: str, content: bytes) -> None:
        """Keep the answer of an address."""
        self._recent.put(address, _Kept(content=content, fetched_at=time.time()))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(content)
            Path(file.name).replace(self._path(address))
            self._drop_oldest()
        except OSError as error:
            log.warning("hub answer not kept", folder=str(self._folder), error=str(error))

    def _read(self, address: str) -> _Kept | None:
        path = self._path(address)
        try:
            fetched_at = path.stat().st_mtime
            return _Kept(content=whole_content(path, most_bytes=MOST_FILE_BYTES), fetched_at=fetched_at)
        except FileNotFoundError:
            return None
        except (OSError, UnusableFile) as error:
            log.warning("kept hub answer not readable", path=str(path), error=str(error))
            return None

    def _drop_oldest(self) -> None:
        with os.scandir(self._folder) as entries:
            files = [(entry.stat(follow_symlinks=False).st_mtime, entry.path) for entry in entries]
        for _, path in sorted(files)[:-MOST_FILES]:
            Path(path).unlink(missing_ok=True)

    def _path(self, address: str) -> Path:
        return self._folder / f"{hashlib.sha256(address.encode()).hexdigest()}.json"

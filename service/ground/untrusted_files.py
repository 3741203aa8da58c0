"""Reading files that anyone may have written: bounded, and refused rather than guessed at."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

# A parsed JSON value takes some hundred bytes: these take a few hundred megabytes at the very most.
MOST_JSON_ENTRIES = 2_000_000

MOST_SHOWN_CHARACTERS = 80


class UnusableFile(Exception):
    """A file is not there, is too large, or does not hold what it should; `detail` names neither root nor folder."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Yield a regular file and its size; `path` must be resolved already.

    A link is refused, so that nothing swapped in after the path was checked leads
    elsewhere; so is a pipe or a device, which could block for ever.
    Raises UnusableFile.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise UnusableFile(f"{shown(path.name)} cannot be read.") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise UnusableFile(f"{shown(path.name)} is no regular file.")
    with os.fdopen(descriptor, "rb") as file:
        try:
            yield file, status.st_size
        except OSError as error:
            raise UnusableFile(f"{shown(path.name)} cannot be read.") from error


def whole_content(path: Path, *, most_bytes: int) -> bytes:
    """Return what a file holds; raises UnusableFile where that is more than `most_bytes`."""
    with opened(path) as (file, _):
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UnusableFile(f"{shown(path.name)} is larger than {most_bytes} bytes.")
    return content


def parsed_object(content: bytes, *, name: str, constant: Callable[[str], Any] | None = None) -> dict[str, Any]:
    """Return the JSON object that a file holds; raises UnusableFile.

    A key that comes twice is refused, since readers differ in which one they
    take; so are NaN and the infinities, which JSON does not know, unless `constant` says what stands for them.
    """
    if content.count(b",") + content.count(b"[") + content.count(b"{") > MOST_JSON_ENTRIES:
        raise UnusableFile(f"{shown(name)} holds more than {MOST_JSON_ENTRIES} entries.")
    try:
        value = json.loads(
            content.decode("utf-8"), object_pairs_hook=_without_repeats, parse_constant=constant or _refused_constant
        )
    except RecursionError as error:
        raise UnusableFile(f"{shown(name)} is nested too deep.") from error
    except _RepeatedKey as error:
        raise UnusableFile(f"{shown(name)} names {shown(error.key)} twice.") from error
    except ValueError as error:
        raise UnusableFile(f"{shown(name)} is not JSON.") from error
    if not isinstance(value, dict):
        raise UnusableFile(f"{shown(name)} holds no JSON object.")
    return value


def shown(text: str) -> str:
    """Return a name from a file as a message may carry it: quoted, cut, without control characters."""
    return repr(text if len(text) <= MOST_SHOWN_CHARACTERS else text[:MOST_SHOWN_CHARACTERS] + "…")


class _RepeatedKey(ValueError):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        raise _RepeatedKey(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return result


def _refused_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")

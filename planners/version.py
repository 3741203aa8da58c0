"""Which planner answered: the release, and the exact content of its code and data files."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from plimsoll.planners import PLANNER_VERSION

FOLDER = Path(__file__).parent
SUFFIXES = (".py", ".toml", ".csv")
# A stored plan is found again by its version, so two planners in use must not share one: 32 bits beside the release.
REVISION_DIGITS = 8


@cache
def planner_version() -> str:
    """Return the release and a digest of the planners' files, as "0.1.0+1a2b3c4d".

    A changed formula is a new version though nobody counted the release up, so
    that no plan of the old one is taken for the new one's. The catalogue has a
    revision of its own.
    """
    return f"{PLANNER_VERSION}+{_files_digest(FOLDER)[:REVISION_DIGITS]}"


def _files_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES):
        name = file.relative_to(folder).as_posix()
        if name.startswith("catalogue/") and file.suffix != ".py":
            continue
        content = file.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()

"""A plan's launch files, listed or written to a folder."""

from __future__ import annotations

import stat
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from plimsoll.cli.asking import NoAnswer
from plimsoll.cli.screen import print_json, print_text
from plimsoll.service.artifacts.saved_files import file_name, file_text
from plimsoll.service.text.tables import table

SCRIPT_SIGN = "#!"
EXECUTABLE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH


def list_artifacts(artifacts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the names of a plan's launch files and how they are written."""
    files = {name: safe_file_name(name, content) for name, content in artifacts.items()}
    if as_json:
        print_json(files)
        return
    rows = [(name, file, f"{len(file_text(artifacts[name]))} characters") for name, file in files.items()]
    print_text(table(("artifact", "file", "length"), rows) + "\n" if rows else "The plan has no launch files.\n")


def write_artifacts(artifacts: Mapping[str, Any], folder: Path) -> None:
    """Write each launch file into a folder, made where it is not there; raises NoAnswer where nothing is written.

    A file that stands there already is left alone, and nothing is written then.
    """
    files = {folder / safe_file_name(name, content): file_text(content) for name, content in artifacts.items()}
    if not files:
        raise NoAnswer("The plan has no launch files.")
    if there := [str(path) for path in files if path.exists()]:
        raise NoAnswer(f"Nothing is written over: {', '.join(there)} stand there already.")
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            if text.startswith(SCRIPT_SIGN):
                path.chmod(path.stat().st_mode | EXECUTABLE)
            sys.stderr.write(f"Wrote {path}\n")
    except OSError as error:
        raise NoAnswer(f"{error.filename} cannot be written: {error.strerror}.") from error


def safe_file_name(name: str, content: Any) -> str:
    """Return the file of an artifact.

    Raises NoAnswer for a name that leads out of the folder: it may come from another machine.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts or not name.isprintable():
        raise NoAnswer(f"The artifact {name!r} has a name that is no file's.")
    return file_name(name, content)

"""What appears on the terminal: answers with colour where a person looks, progress, and refusals."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer

FITS, DOES_NOT_FIT, NO_ANSWER = 0, 1, 2
"""Exit codes: yes, no, and no answer (a wrong question, or nobody there to answer it)."""
VERDICT_COLOURS = {"fits": typer.colors.GREEN, "tight": typer.colors.YELLOW, "no": typer.colors.RED}
STATE_COLOURS = {"succeeded": typer.colors.GREEN, "failed": typer.colors.RED, "cancelled": typer.colors.YELLOW}

ShowProgress = Callable[[Mapping[str, Any], str], None]
"""Shows `{done, total, unit, message}` and a state."""


def print_json(value: Any) -> None:
    """Print JSON values."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def print_text(text: str, *, verdict: str | None = None) -> None:
    """Print tables; on a terminal with their headings bold and the verdict in its colour."""
    sys.stdout.write(_coloured(text, verdict) if _has_colour() else text)


def complain(message: str, fields: Sequence[tuple[str, str]] = ()) -> None:
    """Print why there is no answer, and each field at fault, to the standard error."""
    sys.stderr.write(f"{message}\n")
    for where, detail in fields:
        sys.stderr.write(f"  {where}: {detail}\n" if where else f"  {detail}\n")


@contextmanager
def progress_bar(title: str) -> Iterator[ShowProgress]:
    """Yield what shows progress: a bar with rate and time left on a terminal, nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield lambda _progress, _state: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[message]}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, message="")

        def show(progress: Mapping[str, Any], state: str) -> None:
            message = progress.get("message") or state
            bar.update(task, completed=progress["done"], total=progress["total"] or None, message=message)

        yield show


def _has_colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def _coloured(text: str, verdict: str | None) -> str:
    lines = text.split("\n")
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if line and not line.startswith(" ") and following.startswith("  "):
            lines[number] = typer.style(line, bold=True)
    colour = {**VERDICT_COLOURS, **STATE_COLOURS}.get(verdict or "")
    if colour is not None:
        lines[0] = typer.style(lines[0], fg=colour, bold=True)
    return "\n".join(lines)

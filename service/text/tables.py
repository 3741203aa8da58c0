"""Text in columns: aligned, a hundred wide, sizes in GiB, nothing that could drive a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

COLUMNS = 100
GIB = 2**30
SECONDS_A_DAY = 86_400
LEAST_FIRST_COLUMN = 8

_UNITS = (("d", SECONDS_A_DAY), ("h", 3_600), ("min", 60), ("s", 1), ("ms", 1e-3), ("us", 1e-6))


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return aligned columns: the first to the left, the others to the right."""
    cells = [[cell(value) for value in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    # The first column gives way where the table is too wide.
    widths[0] = min(widths[0], max(LEAST_FIRST_COLUMN, COLUMNS - 2 - sum(2 + width for width in widths[1:])))
    lines = [
        "  ".join(
            [
                row[0][: widths[0]].ljust(widths[0]),
                *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in cells
    ]
    return "\n".join(f"  {line.rstrip()}" for line in lines)


def pairs(facts: Iterable[tuple[str, Any]]) -> str:
    """Return names and values in two columns, those without a value left out."""
    known = [(name, cell(value)) for name, value in facts if value not in (None, "")]
    width = max((len(name) for name, _ in known), default=0)
    indent = " " * (width + 4)
    return "\n".join(
        textwrap.fill(f"  {name.ljust(width)}  {value}", COLUMNS, subsequent_indent=indent) for name, value in known
    )


def gib(size_bytes: float | None) -> str:
    """Return a size as people read it."""
    return "" if size_bytes is None else f"{size_bytes / GIB:.2f} GiB"


def seconds_text(seconds: float | None) -> str:
    """Return a time in the largest unit that leaves at least one of it."""
    if seconds is None:
        return ""
    name, length = next(((name, length) for name, length in _UNITS if seconds >= length), _UNITS[-1])
    return f"{seconds / length:.3g} {name}" if name != "d" else f"{seconds / length:.1f} {name}"


def titled(title: str, *parts: str) -> str:
    """Return a heading and what stands under it."""
    return "\n".join((title, *parts))


def notes(title: str, texts: Sequence[str]) -> str:
    """Return a list under a heading; nothing where there is none."""
    return titled(title, *(wrapped(f"  - {note}", indent="    ") for note in texts)) if texts else ""


def wrapped(text: str, indent: str = "") -> str:
    """Return text broken into lines, the further ones indented."""
    leading = text[: len(text) - len(text.lstrip())]
    return textwrap.fill(printable(text.strip()), COLUMNS, initial_indent=leading, subsequent_indent=indent)


def joined(sections: Iterable[str]) -> str:
    """Return the sections that there are, a blank line between them."""
    return "\n\n".join(section for section in sections if section) + "\n"


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    return printable(f"{value:.6g}" if isinstance(value, float) else str(value))


def printable(text: str) -> str:
    """Return the text without control characters: a model's name must not drive the reader's terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)

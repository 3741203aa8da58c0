"""Text in columns: aligned, a hundred wide, sizes in GiB, nothing that could drive a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from plimsoll.planners.ground.figures import duration, figure
from plimsoll.planners.ground.units import GIB

COLUMNS = 100
CELL_DIGITS = 6
INDENT = GAP = "  "

_QUOTED = re.compile("`[^`]+`")
# Of no text that people write, and so free to stand for a space meanwhile.
_KEPT_SPACE = "\ue000"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return aligned columns: the first to the left, the others to the right.

    Nothing is ever cut: it may be there to be pasted. Where the table is too wide, what begins a row stands above it.
    """
    cells = [[cell(value) for value in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    room = COLUMNS - len(INDENT) - sum(len(GAP) + width for width in widths[1:])
    widths[0] = min(widths[0], max(room, len(cells[0][0])))
    return "\n".join(line for row in cells for line in _lines(row, widths))


def _lines(row: Sequence[str], widths: Sequence[int]) -> Iterable[str]:
    first, *others = row
    if len(first) > widths[0]:
        yield INDENT + first
        first = ""
    padded = (other.rjust(width) for other, width in zip(others, widths[1:], strict=True))
    yield (INDENT + GAP.join([first.ljust(widths[0]), *padded])).rstrip()


def pairs(facts: Iterable[tuple[str, Any]]) -> str:
    """Return names and values in two columns, those without a value left out."""
    known = [(name, cell(value)) for name, value in facts if value not in (None, "")]
    width = max((len(name) for name, _ in known), default=0)
    indent = " " * (width + 4)
    return "\n".join(_filled(f"{INDENT}{name.ljust(width)}{GAP}{value}", "", indent) for name, value in known)


def gib(size_bytes: float | None) -> str:
    """Return a size as people read it."""
    return "" if size_bytes is None else f"{size_bytes / GIB:.2f} GiB"


def seconds_text(seconds: float | None) -> str:
    """Return a time as people read it."""
    return "" if seconds is None else duration(seconds)


def titled(title: str, *parts: str) -> str:
    """Return a heading and what stands under it."""
    return "\n".join((title, *parts))


def notes(title: str, texts: Sequence[str]) -> str:
    """Return a list under a heading; nothing where there is none."""
    return titled(title, *(wrapped(f"  - {note}", indent="    ") for note in texts)) if texts else ""


def wrapped(text: str, indent: str = "") -> str:
    """Return text broken into lines, the further ones indented."""
    leading = text[: len(text) - len(text.lstrip())]
    return _filled(printable(text.strip()), leading, indent)


def _filled(text: str, first_indent: str, indent: str) -> str:
    """Return text broken at spaces alone, and at none within `backquotes`: what is there to be copied stays whole."""
    whole = _QUOTED.sub(lambda quoted: quoted[0].replace(" ", _KEPT_SPACE), text)
    lines = textwrap.fill(
        whole,
        COLUMNS,
        initial_indent=first_indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.replace(_KEPT_SPACE, " ")


def joined(sections: Iterable[str]) -> str:
    """Return the sections that there are, a blank line between them."""
    return "\n\n".join(section for section in sections if section) + "\n"


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    return printable(figure(value, CELL_DIGITS) if isinstance(value, float) else str(value))


def printable(text: str) -> str:
    """Return the text without control characters: a model's name must not drive the reader's terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)

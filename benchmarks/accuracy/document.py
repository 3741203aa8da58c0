"""Tables of a benchmark, printed or set into a page of the documentation."""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

BEGIN = "<!-- table: {name} -->"
END = "<!-- end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One table: `name` is its place in the page, `lines` are plain text in columns."""

    name: str
    title: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the table under its title."""
        return "\n".join((self.title, "", *self.lines))


def write_sections(page: Path, sections: Iterable[Section]) -> None:
    """Replace the tables of a page that have these names.

    Raises ValueError where the page has no place for a table, so that none is dropped unseen.
    """
    text = page.read_text()
    for section in (measured_on(), *sections):
        begin = BEGIN.format(name=section.name)
        place = re.compile(re.escape(begin) + r"\n.*?" + re.escape(END), re.DOTALL)
        body = f"{begin}\n```\n{section.text}\n```\n{END}"
        if not place.search(text):
            raise ValueError(f"{page} has no place for {section.name!r}: a line {begin}, and {END} below it.")
        text = place.sub(lambda _, body=body: body, text)
    page.write_text(text)


def measured_on() -> Section:
    """Return the day and the machine."""
    machine = f"{os.cpu_count()} CPU cores, {platform.machine()}, Python {platform.python_version()}"
    day = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return Section(name="measured-on", title=f"{day}, {machine}", lines=())

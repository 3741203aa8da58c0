"""The commands of the documentation: which blocks there are, which are run, and why others are not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from plimsoll.service.worker.processes.child import PROJECT_ROOT

RUN_LANGUAGE = "bash"
SHELL_LANGUAGES = ("bash", "sh", "console", "shell")
NOT_RUN = "Not run as a test:"
DOCUMENTED_URL = "http://127.0.0.1:8000"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# How a command of ours begins, so that none hides in a block without a language.
_COMMAND = re.compile(
    r"^(?:curl|plimsoll|make|pip|kubectl|docker|pg_dump|createdb|PLIMSOLL_\w+=\S* plimsoll)\b", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block, the line it begins on, and the last words before it."""

    language: str
    text: str
    line: int
    before: str

    @property
    def holds_commands(self) -> bool:
        """Return whether it is for a shell, by its language or by what it says."""
        return self.language in SHELL_LANGUAGES or (not self.language and bool(_COMMAND.search(self.text)))


def pages() -> list[Path]:
    """Return the README and every page of the documentation."""
    return [PROJECT_ROOT / "README.md", *sorted((PROJECT_ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    content = page.read_text()
    for found in _BLOCK.finditer(content):
        before = content[: found.start()].rstrip().rpartition("\n\n")[2]
        line = content.count("\n", 0, found.start()) + 1
        yield Block(language=found[1], text=found[2], line=line, before=before)


def script(page: Path, url: str) -> str:
    """Return the commands of a page that are run, one after the other, asking a service at `url`."""
    return "\n".join(block.text for block in blocks(page) if block.language == RUN_LANGUAGE).replace(
        DOCUMENTED_URL, url
    )

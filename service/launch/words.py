"""Commands as lists of words, and as a shell reads them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from plimsoll.service.workloads.commands.flags import Flag, named


def shell_text(words: Sequence[str]) -> str:
    """Return the words as a person types them; a variable of the shell stands bare, so that it is replaced."""
    return " ".join(word if word.startswith("$") else shlex.quote(word) for word in words)


def options(flags: Sequence[Flag], **values: str | int | float) -> list[str]:
    """Return values by the fields of a program's table of flags, each as its option's two words."""
    return [word for name, value in named(flags, **values).items() for word in (f"--{name}", str(value))]


def above_one(flags: Sequence[Flag], **degrees: int) -> list[str]:
    """Return the options of those degrees that divide anything."""
    return options(flags, **{field: degree for field, degree in degrees.items() if degree > 1})

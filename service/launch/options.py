"""Command-line options as text, from names and values."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TypeAlias

from plimsoll.service.launch.training import Placeholder

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None
Options: TypeAlias = Mapping[str, Value]


def option_lines(options: Options) -> list[str]:
    """Return `--name value` for each option; True is the name alone, False and None are nothing.

    Placeholders stay open, for the shell to fill. A file of such lines without any is
    read by a shell as `program $(cat file)`.
    """
    return [
        f"--{name}" if value is True else f"--{name} {_word(value)}"
        for name, value in options.items()
        if value is not None and value is not False
    ]


def _word(value: Value) -> str:
    if isinstance(value, tuple):
        return shlex.join(value)
    return value if isinstance(value, Placeholder) else shlex.quote(str(value))

"""Parsers of serving programs that cannot be installed here, made of their documented options."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plimsoll.service.launch.serving import version_numbers

OPTIONS = tomllib.loads((Path(__file__).parent / "engine_options.toml").read_text())
TYPES: dict[str, Any] = {"whole": int, "number": float, "text": str}


class Refused(Exception):
    """The program would not start."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise Refused(message)


def _choices(option: dict[str, Any], version: str) -> list[str] | None:
    until = {choice: version_numbers(first) for choice, first in option.get("until", {}).items()}
    if "choices" not in option:
        return None
    return [choice for choice in option["choices"] if choice not in until or version_numbers(version) < until[choice]]


def parsed(program: str, words: Sequence[str], version: str = "99") -> dict[str, Any]:
    """Return what a program of that version reads, by option; raise Refused where it would not start."""
    table = OPTIONS[program]
    length = len(table["command"])
    if list(words[:length]) != table["command"]:
        raise Refused(f"{words[:length]} is not the program")
    parser = _Parser(allow_abbrev=False)
    if table["positional"]:
        parser.add_argument("model")
    for name, option in table["options"].items():
        if version_numbers(option.get("since", "0")) > version_numbers(version):
            continue
        if option["type"] == "switch":
            parser.add_argument(f"--{name}", action="store_true", default=None)
        else:
            parser.add_argument(f"--{name}", type=TYPES[option["type"]], choices=_choices(option, version))
    return {name: value for name, value in vars(parser.parse_args(words[length:])).items() if value is not None}

"""Command-line arguments read against a table of the flags that matter."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.service.workloads.commands.launches import NotRead

# vLLM reads 1k as 1,000 and 1K as 1,024 (vllm/engine/arg_utils.py, human_readable_int).
HUMAN_READABLE = re.compile(r"^([0-9]+(?:\.[0-9]+)?)([kKmMgGtT]?)$")
MULTIPLES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
AUTO = "auto"
# Hugging Face's argument parser lets a switch be followed by its value.
SWITCH_VALUES = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
UNRESOLVED = re.compile(r"\$[({A-Za-z_@*1-9]")
# A word that is nothing but a variable or a command's output, whose options nobody sees.
ALL_UNRESOLVED = re.compile(r"^\$(?:[A-Za-z_][A-Za-z0-9_]*|[@*1-9]|\{[^}]*\}|\(.*\))$", re.DOTALL)
# A few dozen programs have a table each.
MOST_KEPT_TABLES = 64
IF_WRITTEN = ("whole-if-written", "text-if-written")
Told = TypeVar("Told")
# Flags outside every table that take no value, by how their names begin.
SWITCH = re.compile(r"^-*(?:enable|disable|no|use|skip|allow|trust|enforce|headless|async)(?:[-_]|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag by all its names, without dashes in front and with `-` between words; `field` is ours for it.

    The form `whole-or-auto` reads `auto` and -1 as AUTO, which leaves the number to the program, `texts` has all words
    up to the next flag, each quoted where a shell needs it, and `switched-off` turns the field's switch off. Of
    `whole-if-written` and `text-if-written` the name is kept among the others as well, and a value that a variable
    holds is no problem: each pod has its own, and the text stays.
    Launch files write the first name, or the one that stands in `written`.
    """

    names: tuple[str, ...]
    field: str
    form: Literal[
        "text",
        "texts",
        "whole",
        "number",
        "switch",
        "switched-off",
        "whole-or-auto",
        "whole-if-written",
        "text-if-written",
    ]
    written: str = ""

    @property
    def name(self) -> str:
        """Return the name that launch files write."""
        return self.written or self.names[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What was read: values by field, words that belong to no flag, other flags' names, and what made no sense.

    `unresolved` are words that may be any options: variables that the object does not write the value of.
    """

    values: Mapping[str, str | int | float | bool]
    positionals: tuple[str, ...]
    others: tuple[str, ...]
    problems: tuple[str, ...]
    unresolved: tuple[str, ...] = ()


def read_flags(words: Sequence[str], flags: Sequence[Flag]) -> Arguments:
    """Return the values of the flags of a table, the last of each where it stands twice, as argparse has it.

    Underscores count as dashes. A flag that the table does not hold takes the next
    word with it unless that is a flag too, since nothing says whether it is a switch.
    """
    by_name = {name: flag for flag in flags for name in flag.names}
    values: dict[str, str | int | float | bool] = {}
    positionals: list[str] = []
    others: list[str] = []
    problems: list[str] = []
    unresolved: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not _is_flag(word):
            positionals.append(word)
            if ALL_UNRESOLVED.match(word):
                unresolved.append(word)
            continue
        name, has_value, text = word.lstrip("-").partition("=")
        flag = by_name.get(name.replace("_", "-"))
        if flag is not None and flag.form == "switched-off":
            values[flag.field] = False
            continue
        if flag is not None and flag.form == "switch":
            if not has_value and rest and rest[0].lower() in SWITCH_VALUES:
                text = rest.pop(0)
            values[flag.field] = SWITCH_VALUES.get(text.lower(), True)
            continue
        is_switch = flag is None and SWITCH.match(word) and ALL_UNRESOLVED.match(rest[0] if rest else "")
        if not has_value and rest and not _is_flag(rest[0]) and not is_switch:
            text, has_value = rest.pop(0), "="
            if flag is not None and flag.form == "texts":
                listed = [text, *itertools.takewhile(lambda word: not _is_flag(word), rest)]
                del rest[: len(listed) - 1]
                text = shlex.join(listed)
        if flag is None or flag.form in IF_WRITTEN:
            others.append(word.partition("=")[0])
        if flag is None or (flag.form == "whole-if-written" and UNRESOLVED.search(text)):
            continue
        if not has_value:
            problems.append(f"{word} has no value")
        else:
            _read_value(flag, text, values, problems)
    return Arguments(
        values=values,
        positionals=tuple(positionals),
        others=tuple(others),
        problems=tuple(problems),
        unresolved=tuple(unresolved),
    )


def named(flags: Sequence[Flag], **values: Told) -> dict[str, Told]:
    """Return values by the names that a program has for their fields; raises KeyError for a field that it has not."""
    names = _names(ByIdentity(flags))
    return {names[field]: value for field, value in values.items()}


@functools.lru_cache(maxsize=MOST_KEPT_TABLES)
def _names(flags: ByIdentity[Sequence[Flag]]) -> Mapping[str, str]:
    """Return the names that a table writes, by field; of several the first."""
    return {flag.field: flag.name for flag in reversed(flags.value)}


def option(flags: Sequence[Flag], field: str) -> str:
    """Return the option by which a program is told a field; raises KeyError."""
    return f"--{next(iter(named(flags, **{field: None})))}"


def options_unseen(read: Arguments) -> NotRead | None:
    """Return what hides options of a script, None where nothing does.

    What stands before the script is for its launcher, and the script's own name decides nothing.
    """
    known = next((place for place, word in enumerate(read.positionals) if word not in read.unresolved), 0)
    hidden = [word for word in read.positionals[known + 1 :] if word in read.unresolved]
    if not hidden:
        return None
    return NotRead(reason=f"the command takes words from {hidden[0][:60]}, not written in the object")


def _read_value(flag: Flag, text: str, values: dict[str, str | int | float | bool], problems: list[str]) -> None:
    if flag.form == "text-if-written":
        values[flag.field] = text
        return
    if UNRESOLVED.search(text):
        problems.append(f"--{flag.names[0]} is {text[:60]}, which the object does not resolve")
        return
    if flag.form in ("text", "texts"):
        values[flag.field] = text
        return
    if flag.form == "whole-or-auto" and text.lower() in (AUTO, "-1"):
        values[flag.field] = AUTO
        return
    match = HUMAN_READABLE.match(text)
    number = float(match[1]) * MULTIPLES[match[2]] if match else None
    if number is None or (flag.form != "number" and number != int(number)):
        problems.append(f"--{flag.names[0]} is {text[:60]!r}, which is no number it takes")
    else:
        values[flag.field] = number if flag.form == "number" else int(number)


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not re.match(r"^-[0-9.]", word)

"""The lines of an engine's start-up log that say something, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from plimsoll.planners.ground.units import GIB

NUMBER = r"(-?\d{1,12}(?:\.\d{1,12})?)"
GIB_NUMBER = NUMBER + r" ?Gi?B"
COUNT = r"(\d[\d,]{0,19})"

Reduce: TypeAlias = Callable[[Sequence[float]], float]


def last(values: Sequence[float]) -> float:
    """Return what was printed last."""
    return values[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line that an engine prints: a part that every such line has, the number in it, and which of several counts.

    Workers print one each: the fullest one's weights and the emptiest one's cache decide.
    Where `sums` is given, the numbers of one line are added up.
    """

    figure: str
    has: str
    pattern: re.Pattern[str]
    unit: float = 1.0
    of_several: Reduce = last
    sums: bool = False


def gib_line(figure: str, has: str, pattern: str, of_several: Reduce = max) -> Line:
    """Return a line with an amount of memory; engines that print GB divide by 2^30 as well."""
    return Line(
        figure=figure, has=has, pattern=re.compile(pattern, re.ASCII | re.I), unit=float(GIB), of_several=of_several
    )


def count_line(figure: str, has: str, pattern: str, of_several: Reduce = last) -> Line:
    """Return a line with a number of things, or with a plain ratio."""
    return Line(figure=figure, has=has, pattern=re.compile(pattern, re.ASCII | re.I), of_several=of_several)


NAME = r"'([^']{1,200})'"
WORD = r"'?([\w./:+-]{1,80})'?"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLines:
    """What an engine prints as it starts.

    `settings` is a part of the line that states its settings, `words` those of them that are no numbers. Where that
    line has `attention_data_parallel`, data parallel ranks of attention share the tensor parallel ones.
    """

    lines: tuple[Line, ...]
    settings: str
    words: Mapping[str, re.Pattern[str]]
    versions: tuple[re.Pattern[str], ...]
    attention_data_parallel: str | None = None


def word(name: str) -> re.Pattern[str]:
    """Return the pattern of a setting that is a word."""
    return re.compile(name, re.ASCII)

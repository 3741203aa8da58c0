"""Figures as people read them, in sentences and tables: no powers of ten, and a time in the unit that suits it."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from plimsoll.planners.ground.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE

SIGNIFICANT_DIGITS = 3
# Each unit of time, the seconds that it has, and from how many on it is used: 75 s say more than 1.25 min.
TIME_UNITS = (
    ("days", SECONDS_PER_DAY, 2 * SECONDS_PER_DAY),
    ("h", SECONDS_PER_HOUR, SECONDS_PER_HOUR),
    ("min", SECONDS_PER_MINUTE, 2 * SECONDS_PER_MINUTE),
    ("s", 1.0, 1.0),
    ("ms", 1e-3, 1e-3),
    ("us", 1e-6, 0.0),
)
COUNT_WORDS = (("trillion", 1e12), ("billion", 1e9), ("million", 1e6))


def figure(value: float, digits: int = SIGNIFICANT_DIGITS) -> str:
    """Return a number in so many digits, written out: 1,180 and 0.000012, where `g` has 1.18e+03 and 1.2e-05."""
    return format(Decimal(f"{value:.{digits}g}"), ",f")


def duration(seconds: float, digits: int = SIGNIFICANT_DIGITS) -> str:
    """Return a time in the largest unit that suits it, chosen after rounding: never 1,000 ms, but 1 s."""
    rounded = float(f"{seconds:.{digits}g}")
    name, length, _ = next(unit for unit in TIME_UNITS if rounded >= unit[2])
    return f"{figure(seconds / length, digits)} {name}" if rounded else "0 s"


def count_in_words(number: float) -> str:
    """Return a count as people say it: 7 billion, 125 million; less than a million as `figure` writes it."""
    for word, size in COUNT_WORDS:
        if float(f"{number:.{SIGNIFICANT_DIGITS}g}") >= size:
            return f"{figure(number / size)} {word}"
    return figure(number)


def counted(number: int, thing: str, things: str = "") -> str:
    """Return so many of a thing: 1 GPU, 2,048 GPUs; `things` where the plural is no "s" more."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def listed(items: Sequence[str], word: str = "and") -> str:
    """Return items as a sentence lists them: one, two and three."""
    return f"{', '.join(items[:-1])} {word} {items[-1]}" if len(items) > 1 else "".join(items)

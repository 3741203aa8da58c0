"""Whether runs fit, by the service's verdict, against what happened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

NAME_WIDTH = 46
HEADINGS = (
    ("fits, ran", 10),
    ("no, failed", 11),
    ("refused, failed", 16),
    ("fits, failed", 13),
    ("no, ran", 8),
    ("refused, ran", 13),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run that ran or failed, and the verdict on it; `fits` is None where the service refused."""

    group: str
    is_seen: bool
    fits: bool | None
    ran: bool

    @property
    def is_right(self) -> bool:
        """Return whether the verdict is what happened; who refuses a run that failed has said as much."""
        return bool(self.fits) is self.ran

    @property
    def place(self) -> int:
        """Return which of the headings it counts under."""
        if self.is_right:
            return 0 if self.ran else 1 if self.fits is not None else 2
        return 3 if not self.ran else 4 if self.fits is not None else 5


def verdict_table(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield a line a group, those of sources that fits saw first, and the sums of both parts."""
    yield f"{'fit':5} {'':{NAME_WIDTH}}" + "".join(name.rjust(width) for name, width in HEADINGS) + f"{'right':>8}"
    told = list(outcomes)
    for word, is_seen in (("saw", True), ("-", False)):
        part = [one for one in told if one.is_seen is is_seen]
        for group in sorted({one.group for one in part}):
            yield _line(word, group, [one for one in part if one.group == group])
        yield _line(word, "together", part)


def _line(word: str, name: str, outcomes: list[Outcome]) -> str:
    counts = [sum(one.place == place for one in outcomes) for place in range(len(HEADINGS))]
    cells = "".join(f"{count:>{width}}" for count, (_, width) in zip(counts, HEADINGS, strict=True))
    right = sum(one.is_right for one in outcomes) / len(outcomes) if outcomes else float("nan")
    return f"{word:5} {name[:NAME_WIDTH]:{NAME_WIDTH}}{cells}{right:>8.1%}"

"""Readings beside what the service answered, and the tables of them: sources that fits saw, and those they did not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

CLOSE, NEAR = 0.05, 0.10
HEADINGS = (
    ("asked", 5),
    ("refused", 8),
    ("mean", 6),
    ("median", 7),
    ("bias", 7),
    ("<=5%", 6),
    ("<=10%", 6),
    ("in band", 8),
)
NAME_WIDTH = 46
LONGEST_REASON = 110
PARTS = (("sources that fits saw", True), ("sources that no fit saw", False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One reading, and what was answered of it: nothing where `refusal` says why not.

    `ratio` is estimated over measured, `band` what the answer expects the measured to be, in multiples of the estimate.
    """

    source: str
    stack: str
    gpu: str
    kind: str
    is_seen: bool
    weight: float = 1.0
    ratio: float | None = None
    band: tuple[float, float] = (1.0, 1.0)
    refusal: str = ""

    @property
    def is_in_band(self) -> bool:
        """Return whether the measured lies within the answer's bounds; of a refusal it does not."""
        return self.ratio is not None and self.band[0] <= 1 / self.ratio <= self.band[1]


Key = Callable[[Judged], str]


def heading() -> str:
    """Return the headings of the cells of a line."""
    return " ".join(name.rjust(width) for name, width in HEADINGS)


def parts_table(judged: Sequence[Judged], key: Key) -> Iterator[str]:
    """Yield a line a group: the errors on sources that fits saw, beside those on the others."""
    yield f"{'':{NAME_WIDTH}} " + " | ".join(name.center(len(heading())) for name, _ in PARTS)
    yield f"{'':{NAME_WIDTH}} " + " | ".join(heading() for _ in PARTS)
    for name, members in _groups(judged, key):
        halves = (figures([one for one in members if one.is_seen is seen]) for _, seen in PARTS)
        yield f"{name[:NAME_WIDTH]:{NAME_WIDTH}} " + " | ".join(halves)


def source_table(judged: Sequence[Judged], key: Key) -> Iterator[str]:
    """Yield a line a group, those first that fits saw; a group is of one source."""
    yield f"{'fit':5} {'':{NAME_WIDTH}} {heading()}"
    for word, is_seen in (("saw", True), ("-", False)):
        for name, members in _groups([one for one in judged if one.is_seen is is_seen], key):
            yield f"{word:5} {name[:NAME_WIDTH]:{NAME_WIDTH}} {figures(members)}"


def figures(judged: Sequence[Judged]) -> str:
    """Return the cells of a line: refusals count as misses in the shares, and have no error.

    Mean, shares and bias are weighted; bias is the mean signed error.
    """
    if not judged:
        return " ".join(text.rjust(width) for text, (_, width) in zip(("0", *["-"] * 7), HEADINGS, strict=True))
    answered = [one for one in judged if one.ratio is not None]
    all_weights = np.array([one.weight for one in judged])
    errors = np.array([(one.ratio or 0.0) - 1 for one in answered])
    weights = np.array([one.weight for one in answered])

    def share(hits: Iterable[bool]) -> str:
        return f"{np.average(np.array(list(hits), dtype=np.float64), weights=all_weights):.0%}"

    cells = [str(len(judged)), str(len(judged) - len(answered))]
    if answered:
        size = np.abs(errors)
        cells += [f"{np.average(size, weights=weights):.1%}", f"{np.median(size):.1%}"]
        cells += [f"{np.average(errors, weights=weights):+.1%}"]
    else:
        cells += ["-"] * 3
    cells += [
        share(one.ratio is not None and abs(one.ratio - 1) <= within for one in judged) for within in (CLOSE, NEAR)
    ]
    cells += [share(one.is_in_band for one in judged)]
    return " ".join(text.rjust(width) for text, (_, width) in zip(cells, HEADINGS, strict=True))


def refusal_lines(refusals: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield how many runs were refused, by source and reason."""
    counted = Counter((source, reason[:LONGEST_REASON]) for source, reason in refusals)
    for (source, reason), count in sorted(counted.items()):
        yield f"{count:5} {source[:NAME_WIDTH]}: {reason}"


def _groups(judged: Sequence[Judged], key: Key) -> Iterator[tuple[str, list[Judged]]]:
    named: dict[str, list[Judged]] = {}
    for one in judged:
        named.setdefault(key(one), []).append(one)
    yield from sorted(named.items())

"""What makes a question unanswerable.

"Does not fit" is an answer and never an error. Each error carries a stable
`code`, which clients may rely on, and the JSON pointer of the field that
caused it. What HTTP status a code becomes is decided in `api/errors.py`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

LEAST_LIKENESS = 0.5
# Misspelt names are 0.75 and more like what was meant; `grok-1` is 0.54 like `megatron-1t`, `AFM` 0.58 like `palm`.
LEAST_NEAR = 0.6
WORDS = re.compile(r"[a-z]+")


class PlimsollError(Exception):
    """A question that cannot be answered, with the reason and the field."""

    code = "plimsoll-error"
    rules: tuple[str, ...] = ()
    """The rules that every run as asked would break; none where something is unknown, unreadable or not planned yet."""

    def __init__(self, detail: str, *, pointer: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.pointer = pointer

    def point_by(self, moved: Callable[[str], str]) -> None:
        """Let the error point where `moved` takes its pointer: the question was part of a larger one."""
        self.pointer = moved(self.pointer)


class InvalidQuestion(PlimsollError):
    """A value is out of range or contradicts another one."""

    code = "invalid-question"

    def __init__(self, detail: str, *, pointer: str = "", rule: str | None = None) -> None:
        """Take the name of the rule too where the program itself would refuse to start."""
        super().__init__(detail, pointer=pointer)
        self.rules = () if rule is None else (rule,)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """One rule that a fixed layout breaks, and the field at fault."""

    rule: str
    detail: str
    pointer: str


class ImpossibleLayout(PlimsollError):
    """A fixed layout breaks rules, so that no run of it can exist.

    `broken` has all of them; the words of the first are the error's own.
    """

    code = "impossible-layout"

    def __init__(
        self, detail: str, *, rule: str, pointer: str = "/layout", broken: tuple[BrokenRule, ...] = ()
    ) -> None:
        super().__init__(detail, pointer=pointer)
        self.rule = rule
        self.broken = broken or (BrokenRule(rule=rule, detail=detail, pointer=pointer),)
        self.rules = tuple(each.rule for each in self.broken)

    def point_by(self, moved: Callable[[str], str]) -> None:
        """Move the pointer of every broken rule too."""
        PlimsollError.point_by(self, moved)
        self.broken = tuple(replace(each, pointer=moved(each.pointer)) for each in self.broken)


class InvalidModelConfig(PlimsollError):
    """A `config.json` lacks a field or contradicts itself."""

    code = "invalid-model-config"


class NotYetAvailable(PlimsollError):
    """The question makes sense, and this version does not answer it yet."""

    code = "not-yet-available"


class PlanningStopped(PlimsollError):
    """Whoever asked no longer waits for the answer, so that the search was given up."""

    code = "planning-stopped"

    def __init__(self) -> None:
        super().__init__("Planning was stopped before an answer was found.")


class UnknownName(PlimsollError):
    """A name that is in no catalogue; the nearest known ones are listed."""

    code = "unknown-name"
    thing = "name"
    way_out = ""

    def __init__(self, name: str, known: Iterable[str], *, pointer: str = "") -> None:
        self.name = name
        self.nearest = nearest_names(name, known)
        hint = f" Nearest: {', '.join(self.nearest)}." if self.nearest else ""
        super().__init__(f"Unknown {self.thing} {name[:100]!r}.{hint}{self.way_out}", pointer=pointer)


class UnknownModel(UnknownName):
    """A model id or alias that is not in the catalogue."""

    code = "unknown-model"
    thing = "model"
    way_out = (
        " GET /models and `plimsoll models` list all. For any other model, send its config.json as "
        '{"model": {"config": …}}.'
    )


class UnknownModelType(UnknownName):
    """A `model_type` that no reader knows; all that are known are listed too."""

    code = "unknown-model-type"
    thing = "model_type"

    def __init__(self, name: str, known: Iterable[str], *, pointer: str = "") -> None:
        self.known = tuple(sorted(known))
        super().__init__(name, self.known, pointer=pointer)
        self.detail = f"{self.detail} Known are {', '.join(self.known)}."


class UnknownGpu(UnknownName):
    """A GPU id or alias that is not in the catalogue."""

    code = "unknown-gpu"
    thing = "GPU"
    way_out = " GET /hardware and `plimsoll hardware` list all. For any other GPU, send its figures."


class UnknownCluster(UnknownName):
    """A cluster id or alias that is not in the catalogue."""

    code = "unknown-cluster"
    thing = "cluster"
    way_out = " GET /hardware and `plimsoll hardware` list all."


class UnknownVersion(UnknownName):
    """A version of a training stack that is not planned; the nearest that are, and the newest, are listed."""

    code = "unknown-version"
    thing = "version"

    def __init__(self, name: str, *, program: str, nearest: Iterable[str], pointer: str = "/framework_version") -> None:
        super().__init__(name, (), pointer=pointer)
        self.nearest = tuple(nearest)
        way_out = f"Nearest: {', '.join(self.nearest)}." if self.nearest else "Its versions are not told apart."
        self.detail = f"Unknown version {name[:100]!r} of {program}. {way_out}"
        self.args = (self.detail,)


def nearest_names(name: str, known: Iterable[str], *, most: int = 5) -> tuple[str, ...]:
    """Return the known names most like `name`, best first.

    A name's first word counts as much as all of it, so that a model's family weighs more than a common ending; an
    organization counts only where both have one.
    """
    wanted = name[:100].lower()
    by_lower: dict[str, str] = {}
    for candidate in known:
        by_lower.setdefault(candidate.lower(), candidate)
    likeness = {candidate: _likeness(wanted, candidate) for candidate in by_lower}
    close = sorted((score, candidate) for candidate, score in likeness.items() if score >= LEAST_NEAR)
    return tuple(by_lower[candidate] for _, candidate in close[::-1][:most])


def _likeness(wanted: str, candidate: str) -> float:
    """Return how like two names are, from 0 to 1."""
    if ("/" in wanted) is not ("/" in candidate):
        wanted, candidate = wanted.rsplit("/", 1)[-1], candidate.rsplit("/", 1)[-1]
    matcher = difflib.SequenceMatcher(None, candidate, wanted)
    if matcher.real_quick_ratio() < LEAST_LIKENESS or matcher.quick_ratio() < LEAST_LIKENESS:
        return 0.0
    whole = matcher.ratio()
    if whole < LEAST_LIKENESS:
        return 0.0
    family = difflib.SequenceMatcher(None, _first_word(wanted), _first_word(candidate)).ratio()
    return (whole + family) / 2


def _first_word(name: str) -> str:
    found = WORDS.match(name.rsplit("/", 1)[-1])
    return found.group() if found else ""

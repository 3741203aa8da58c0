"""A rule of layouts: where layouts break it, in what words that is told, and at which field.

A predicate returns a mask that broadcasts against the layouts and varies only along the axes it reads, so that the same
few lines judge a grid of a million layouts and the one that a client fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, layout_of
from plimsoll.planners.plans import Layout
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.rules.fields import request_pointer

# What a predicate returns where a job decides that no layout breaks the rule.
NOWHERE: BoolArray = np.zeros(1, dtype=bool)


# Whether some layout of the question obeys every rule once fields of its layout are changed.
Works: TypeAlias = Callable[[Mapping[str, Any]], bool]


def untried(_changes: Mapping[str, Any]) -> bool:
    """Return that a way out works, where nothing says on which question it is tried."""
    return True


class Asked(Protocol):
    """What a question has and its job through any stack: all that a rule of fixed degrees may read."""

    @property
    def model(self) -> ModelSpec:
        """Return the model."""

    @property
    def global_batch_size(self) -> int:
        """Return the sequences of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken rule; `field` is the degree a client would change, empty where it is none in particular."""

    rule: str
    field: str
    detail: str

    @property
    def pointer(self) -> str:
        """Return where the field stands in a training request."""
        return request_pointer(self.field)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A layout that breaks a rule, out of `layouts`, which all do.

    `is_formed` says that a search formed it, rather than the degrees alone that a client fixed, and `works` whether a
    way out is one.
    """

    layout: Layout
    layouts: Candidates
    is_formed: bool
    works: Works = untried


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """One way to break a rule: where layouts do, and the sentence on one of them, with its numbers."""

    where: Callable[[Candidates, Job], BoolArray]
    words: Callable[[Case, Job], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedBreach(Breach):
    """A breach by the degrees that a client fixed alone: whatever completes them, it stays.

    Where one of `given` is not fixed, that cannot be said before layouts are formed.
    """

    where: Callable[[Candidates, Asked], BoolArray]
    words: Callable[[Case, Asked], str]
    given: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Why a layout cannot exist, in one or several breaches, of which the first counts.

    `field` is the degree a client would change, `reads` are those that the words name, and `reason` is the rule itself,
    for layouts that break it with several of these.
    """

    name: str
    field: str
    reason: str
    reads: tuple[str, ...]
    breaches: tuple[Breach, ...]

    def broken(self, layouts: Candidates, job: Job) -> BoolArray:
        """Return where layouts break the rule."""
        if len(self.breaches) == 1:
            return self.breaches[0].where(layouts, job)
        return anywhere(breach.where(layouts, job) for breach in self.breaches)

    def obeyed(self, layouts: Candidates, job: Job) -> BoolArray:
        """Return where layouts obey the rule."""
        return ~self.broken(layouts, job)

    def detail(self, layouts: Candidates, job: Job, works: Works = untried) -> str:
        """Return the sentence on a list of layouts which all break the rule: with its numbers where they are alike."""
        at = 0
        for name in self.reads:
            values = getattr(layouts, name)
            if name == "virtual_pipeline":
                # What one virtual stage breaks, more of them break too.
                at = int(np.argmin(values))
            elif values.min() != values.max():
                return self._of_all(layouts, job, works) or (
                    f"None of {len(layouts):,} possible layouts obeys this rule: {self.reason}."
                )
        one = layouts.take([at])
        breach = next(breach for breach in self.breaches if breach.where(one, job).any())
        case = Case(layout=layout_of(layouts, at, job), layouts=layouts, is_formed=True, works=works)
        return breach.words(case, job)

    def _of_all(self, layouts: Candidates, job: Job, works: Works) -> str | None:
        """Return the sentence on a breach that unlike layouts all commit, where it has no numbers of theirs."""
        for breach in self.breaches:
            if not np.broadcast_to(breach.where(layouts, job), layouts.shape).all():
                continue
            ends = (layout_of(layouts, at, job) for at in (0, -1))
            cases = (Case(layout=end, layouts=layouts, is_formed=True, works=works) for end in ends)
            said = {breach.words(case, job) for case in cases}
            return said.pop() if len(said) == 1 else None
        return None

    def fixed_detail(self, least: Candidates, asked: Asked, named: frozenset[str]) -> str | None:
        """Return the sentence on degrees that break the rule by themselves, or None where that is not sure.

        `least` is the one layout of what a client fixed, the fields in `named`, and no other parallelism.
        """
        for breach in self.breaches:
            if not isinstance(breach, FixedBreach) or not named.issuperset(breach.given):
                continue
            if breach.where(least, asked).any():
                layout = least.layout(
                    0, framework="", global_batch_size=asked.global_batch_size, offload_target="", pipeline_schedule=""
                )
                return breach.words(Case(layout=layout, layouts=least, is_formed=False), asked)
        return None

    def field_at_fault(self, named: frozenset[str]) -> str:
        """Return the field to point at: one that the client fixed and the words name, the rule's own first."""
        return next((field for field in (self.field, *self.reads) if field in named), self.field)


def anywhere(masks: Iterable[BoolArray]) -> BoolArray:
    """Return where any of the masks holds, `NOWHERE` itself if all of them are that."""
    found = NOWHERE
    for mask in masks:
        if mask is not NOWHERE:
            found = mask if found is NOWHERE else found | mask
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRule:
    """A rule that a request breaks whatever the model and the stack; `breaches` yields fields and sentences.

    `instead` yields values of the rule's field that would do in their place, the best first.
    """

    name: str
    breaches: Callable[[TrainingQuestion], Iterator[tuple[str, str]]]
    instead: Callable[[TrainingQuestion], Iterator[str]] | None = None

    def violations(self, question: TrainingQuestion, works: Works = untried) -> tuple[Violation, ...]:
        """Return each breach of the rule, with what would do instead."""
        return tuple(
            Violation(rule=self.name, field=field, detail=f"{detail}{self._would_do(question, field, works)}")
            for field, detail in self.breaches(question)
        )

    def _would_do(self, question: TrainingQuestion, field: str, works: Works) -> str:
        values = self.instead(question) if self.instead else iter(())
        found = next((value for value in values if works({field: value})), None)
        return f" {found} would do." if found else ""

"""A rule of jobs: which are not proved yet, in what words that is told, and at which field of the request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from plimsoll.planners.ground.errors import NotYetAvailable

if TYPE_CHECKING:
    from plimsoll.service.worker.jobs.job import TraceJob
    from plimsoll.service.worker.jobs.stack import Stack


Question = TypeVar("Question")
DEVICE = "device"
"""The level whose proofs run for real."""


class Subject(StrEnum):
    """What rules are about, in the order in which they are asked; of a job the first that it breaks is told."""

    FRAMEWORK = "framework"
    REQUEST = "request"
    STACK = "stack"
    SHARDING = "sharding"
    MATRICES = "matrices"
    OFFLOAD = "offload"
    ADAPTERS = "adapters"
    EXPERTS = "experts"
    KERNELS = "kernels"
    FAMILY = "family"
    CONTEXT = "context"
    COMPANIONS = "companions"
    EVALUATIONS = "evaluations"
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A job and its stack, and the parts of the request and of the plan's layout that the job was read from."""

    job: TraceJob
    stack: Stack
    training: Mapping[str, Any]
    layout: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOf(Generic[Question]):
    """Why a question is not proved yet: what breaks it, the field to point at, and the sentence with its numbers."""

    broken: Callable[[Question], bool]
    pointer: str | Callable[[Question], str]
    words: str | Callable[[Question], str]

    def refusal(self, asked: Question) -> NotYetAvailable:
        """Return what is told of a question that breaks the rule."""
        words = self.words if isinstance(self.words, str) else self.words(asked)
        pointer = self.pointer if isinstance(self.pointer, str) else self.pointer(asked)
        return NotYetAvailable(words, pointer=pointer)


class Rule(RuleOf[Asked]):
    """Why a training job is not proved yet."""

    __slots__ = ()


def first_broken(rules: Iterable[RuleOf[Question]], asked: Question) -> RuleOf[Question] | None:
    """Return the first of the rules that a question breaks."""
    return next((rule for rule in rules if rule.broken(asked)), None)

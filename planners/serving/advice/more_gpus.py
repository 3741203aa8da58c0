"""More GPUs for a serving question: how many of them do what was asked, and how they are divided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from plimsoll.planners.questions import Disaggregation, ServingLayoutRequest, ServingQuestion
from plimsoll.planners.serving.advice.stated import as_found, on_gpus
from plimsoll.planners.serving.search.candidates import Candidate

# More than eight times the GPUs is another project, not advice; small deployments may look up to 32 times as far.
MOST_TIMES_THE_GPUS, MOST_TIMES_FEW_GPUS = 8, 32
MOST_FOR_FEW_GPUS = 256
# Every number of GPUs is looked at up to so many, where the fewest are what is wanted.
MOST_GPUS_IN_FULL = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is looked for: `plan` returns a question's best candidate, None where it is refused.

    `promise` says in words what a candidate does that `accepts` wants.
    """

    plan: Callable[[ServingQuestion], Candidate | None]
    accepts: Callable[[Candidate], bool]
    promise: str

    def reached_by(self, question: ServingQuestion) -> Candidate | None:
        """Return a question's plan, None where it is not what is looked for."""
        found = self.plan(question)
        return found if found is not None and self.accepts(found) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """A question with the GPUs and degrees that were found for it, and its plan."""

    question: ServingQuestion
    found: Candidate


def freed(question: ServingQuestion) -> ServingQuestion:
    """Return the question with all degrees and pools left to the search, contexts' apart."""
    layout = ServingLayoutRequest(decode_context_parallel=question.layout.decode_context_parallel)
    pools = None if question.disaggregated is None else Disaggregation()
    return replace(question, layout=layout, disaggregated=pools)


def most_tried(question: ServingQuestion) -> int:
    """Return the most GPUs that are looked at."""
    now = question.hardware.gpus.maximum
    return max(MOST_TIMES_THE_GPUS * now, min(MOST_TIMES_FEW_GPUS * now, MOST_FOR_FEW_GPUS))


def divided(question: ServingQuestion, asked: ServingQuestion, goal: Goal) -> Divided | None:
    """Return a question's plan as it is asked for by its degrees, None where the goal is missed."""
    found = goal.reached_by(question)
    if found is None:
        return None
    fixed = as_found(replace(question, layout=asked.layout), found)
    again = goal.reached_by(fixed)
    return None if again is None else Divided(question=fixed, found=again)


def fewest_gpus(asked: ServingQuestion, goal: Goal) -> Divided | None:
    """Return the fewest more GPUs that do, as machines come; any number of them where the fewest are wanted most."""
    question, now = freed(asked), asked.hardware.gpus.maximum

    def on(count: int) -> Divided | None:
        return divided(on_gpus(question, count), asked, goal)

    below = now
    for count in _doublings(now, asked.hardware.gpus_per_node, most_tried(asked)):
        if (top := on(count)) is not None:
            if asked.objective == "fewest_gpus" and below + 1 < count <= MOST_GPUS_IN_FULL:
                return divided(on_gpus(question, below + 1, count - 1), asked, goal) or top
            nodes = range(below - below % asked.hardware.gpus_per_node, count, asked.hardware.gpus_per_node)[1:]
            return _least(nodes, on) or top
        below = count
    return None


def _doublings(now: int, gpus_per_node: int, most: int) -> Iterator[int]:
    """Yield 1, 2, 4 ... GPUs of a node, then 1, 2, 4 ... nodes, of those beyond `now` and up to `most`."""
    count = 1
    while count < gpus_per_node:
        if now < count <= most:
            yield count
        count *= 2
    count = gpus_per_node
    while count <= most:
        if count > now:
            yield count
        count *= 2


def _least(counts: Sequence[int], on: Callable[[int], Divided | None]) -> Divided | None:
    """Return the least of growing counts that does, found by halving; None where none does."""
    low, high, least = 0, len(counts), None
    while low < high:
        middle = (low + high) // 2
        found = on(counts[middle])
        if found is None:
            low = middle + 1
        else:
            high, least = middle, found
    return least

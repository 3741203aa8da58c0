"""What a client left to choose of formats and batch limits: each combination is a question of its own."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TypeVar

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.questions import ServingQuestion

# Every combination is a search over all degrees.
MOST_CHOICES = 64

T = TypeVar("T")


def allowed_choices(question: ServingQuestion) -> tuple[ServingQuestion, ...]:
    """Return the question once for each combination allowed; raise `InvalidQuestion` where they are too many."""
    allowed = question.allowed
    if allowed is None:
        return (question,)
    combinations = itertools.product(
        _or_own(allowed.weights, question.weights),
        _or_own(allowed.kv_caches, question.kv_cache),
        _or_own(allowed.max_num_batched_tokens, question.max_num_batched_tokens),
        _or_own(allowed.max_num_seqs, question.max_num_seqs),
    )
    chosen = tuple(
        dataclasses.replace(
            question,
            weights=weights,
            kv_cache=cache,
            max_num_batched_tokens=tokens,
            max_num_seqs=sequences,
            allowed=None,
        )
        for weights, cache, tokens, sequences in itertools.islice(combinations, MOST_CHOICES + 1)
    )
    if len(chosen) > MOST_CHOICES:
        raise InvalidQuestion(
            f"Formats and batch limits are searched in at most {MOST_CHOICES} combinations.", pointer="/serving"
        )
    return chosen


def _or_own(allowed: tuple[T, ...], own: T) -> tuple[T, ...]:
    return tuple(dict.fromkeys(allowed)) or (own,)

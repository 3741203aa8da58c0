"""What an objective asks of the number of GPUs, and when a search among growing numbers has found enough."""

from __future__ import annotations

import math
from collections.abc import Iterable

from plimsoll.planners.layouts.candidates import FloatArray, IntArray, any_of
from plimsoll.planners.questions import TrainingQuestion


def run_steps(question: TrainingQuestion) -> int | None:
    """Return the optimizer steps of the token budget, or None without one."""
    if question.tokens is None:
        return None
    return math.ceil(question.tokens / (question.global_batch_size * question.sequence_length))


def wants_fewest_gpus(question: TrainingQuestion) -> bool:
    """Return whether the fewest GPUs that will do are looked for.

    Who names no number wants the fewest, unless cost decides, which more GPUs
    may lower.
    """
    by_itself = question.objective in ("fewest_gpus", "deadline")
    return by_itself or (question.hardware.gpus.is_free and question.objective != "cost")


def objective_of(question: TrainingQuestion, gpus: IntArray, seconds: FloatArray) -> FloatArray:
    """Return what is to be least of layouts that fit: the step's seconds, or with cost the GPU time of a step."""
    return seconds * gpus if question.objective == "cost" else seconds


def latest_step_seconds(question: TrainingQuestion) -> float:
    """Return the longest step that keeps the deadline; infinite where there is none to keep."""
    steps, deadline = run_steps(question), question.deadline_seconds
    if question.objective != "deadline" or steps is None or deadline is None:
        return math.inf
    return deadline / steps


def has_enough(question: TrainingQuestion, step_seconds: Iterable[FloatArray]) -> bool:
    """Return whether any layout is in time; `step_seconds` are those of layouts that are sure to fit."""
    latest = latest_step_seconds(question)
    return any(bool(any_of(seconds[seconds < math.inf] <= latest)) for seconds in step_seconds)

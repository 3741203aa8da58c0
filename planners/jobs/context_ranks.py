"""How ranks that divide a sequence may attend across it: what of a model's attention a stack has no code for."""

from __future__ import annotations

from collections.abc import Collection

from plimsoll.planners.architecture import KvKind
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.stacks.model_code import traits_of


def ring_lacks(job: Job) -> frozenset[str]:
    """Return the traits of the model that its stack cannot run with a ring of context ranks."""
    return _lacked(job, job.profile.models.ring_lacks)


def exchange_lacks(job: Job) -> frozenset[str]:
    """Return those that it cannot run where all context ranks exchange heads and none are a ring."""
    return _lacked(job, job.profile.models.exchange_lacks)


def _lacked(job: Job, traits: Collection[str]) -> frozenset[str]:
    if not traits:
        return frozenset()
    found = traits_of(job.model) & frozenset(traits)
    return found if _slides(job) else found - {"sliding_window"}


def _slides(job: Job) -> bool:
    """Return whether a window is shorter than the sequences: one that is not can be left out."""
    states = (part.block.kv for part in job.layers)
    windows = (state.window for state in states if state is not None and state.kind is KvKind.SLIDING_WINDOW)
    return any(window is not None and window < job.sequence_length for window in windows)

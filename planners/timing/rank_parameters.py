"""The parameters of one rank's share of the model, stages taken as equal: before ZeRO divides them, and after.

Before, tensor, pipeline and expert parallelism divide them. After, a rank updates
those whose optimizer states it holds. The ranks that share experts are taken from
those over which ZeRO divides, so that an expert's states are divided over fewer:
what of the experts a rank holds is the memory planner's to say.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.jobs.job import BlockWeights, Job, low_precision_matrices
from plimsoll.planners.layouts.candidates import Candidates, FloatArray, once
from plimsoll.planners.layouts.experts import expert_tensor_ranks
from plimsoll.planners.memory.holdings import shard_ranks
from plimsoll.planners.memory.shards import WHOLE, divisions, shard_elements

# A search asks for the same job's sums again and again; a dozen frameworks, for a few searches at once.
MOST_KEPT_JOBS = 64


@once
def stage_parameters(layouts: Candidates, job: Job) -> FloatArray:
    """Return the trainable parameters of one rank's share, before ZeRO divides their states.

    Expert parallelism divides the experts and nothing else.
    """
    counts = _parameters(job)
    return _rank_share(counts.learning, counts.learning_of_experts, layouts, job)


@once
def whole_parameters(layouts: Candidates, job: Job) -> FloatArray:
    """Return all of the model's parameters of one rank's share, before ZeRO divides them."""
    counts = _parameters(job)
    return _rank_share(counts.all, counts.all_of_experts, layouts, job)


@once
def low_precision_parameters(layouts: Candidates, job: Job) -> FloatArray:
    """Return the parameters of one rank's share that lie in 8 or 4 bits alone."""
    if not job.low_precision_weights:
        return np.zeros(1)
    counts = _low_precision_parameters(job)
    return _rank_share(counts.all, counts.all_of_experts, layouts, job)


@once
def updated_parameters(layouts: Candidates, job: Job) -> FloatArray:
    """Return the trainable parameters that a rank updates: those whose optimizer states it holds."""
    counts, held_from = _parameters(job), job.profile.sharding.optimizer_from
    if not counts.learning_of_experts:
        return stage_parameters(layouts, job) / _parts(layouts, job, held_from)
    others = _rank_share(counts.learning - counts.learning_of_experts, 0, layouts, job)
    experts = tuple(_learning_experts(part) for part in job.layers)
    return others / _parts(layouts, job, held_from) + _held_experts(experts, layouts, job, held_from)


@once
def frozen_parameters(layouts: Candidates, job: Job) -> FloatArray:
    """Return the parameters that a rank holds and that do not learn."""
    if job.method == "full":
        return np.zeros(1)
    counts, held_from = _parameters(job), job.profile.sharding.parameters_from
    if not counts.all_of_experts:
        return whole_parameters(layouts, job) / _parts(layouts, job, held_from)
    others = _rank_share(counts.all - counts.all_of_experts, 0, layouts, job)
    experts = tuple(_frozen_experts(part) for part in job.layers)
    return others / _parts(layouts, job, held_from) + _held_experts(experts, layouts, job, held_from)


def _parts(layouts: Candidates, job: Job, from_stage: int) -> FloatArray:
    """Return into how many parts ZeRO divides what it divides from a stage on."""
    result: FloatArray = np.where(layouts.zero_stage >= from_stage, shard_ranks(layouts, job), 1)
    return result


def _held_experts(experts: tuple[BlockWeights, ...], layouts: Candidates, job: Job, from_stage: int) -> FloatArray:
    """Return the elements of experts that a rank holds of a state that ZeRO divides from a stage on."""
    by = divisions(layouts, np.where(layouts.zero_stage >= from_stage, shard_ranks(layouts, job), WHOLE), job)
    held = sum(part.block.repeats * shard_elements(part, by) for part in experts)
    result: FloatArray = held / layouts.pipeline_parallel
    return result


@functools.lru_cache(maxsize=MOST_KEPT_JOBS)
def _learning_experts(part: BlockWeights) -> BlockWeights:
    experts = tuple(weight for weight in part.trainable if weight.experts > 1)
    return BlockWeights(block=part.block, trainable=experts, frozen=())


@functools.lru_cache(maxsize=MOST_KEPT_JOBS)
def _frozen_experts(part: BlockWeights) -> BlockWeights:
    """Return a layer's frozen experts in the place of those that learn, whose elements are counted."""
    experts = tuple(weight for weight in part.frozen if weight.experts > 1)
    return BlockWeights(block=part.block, trainable=experts, frozen=())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parameters:
    """A job's parameters: those that learn, and all; of these the experts'."""

    learning: int
    learning_of_experts: int
    all: int
    all_of_experts: int


@functools.lru_cache(maxsize=MOST_KEPT_JOBS)
def _parameters(job: Job) -> _Parameters:
    learning = ((part.block, weight) for part in job.layers for weight in part.trainable)
    everything = ((block, weight) for block in job.model.layers for weight in block.weights)
    of_experts, all_of_experts = (
        sum(weight.elements * block.repeats for block, weight in weights if weight.experts > 1)
        for weights in (learning, everything)
    )
    return _Parameters(
        learning=job.trainable_parameters,
        learning_of_experts=of_experts,
        all=job.model.parameters,
        all_of_experts=all_of_experts,
    )


@functools.lru_cache(maxsize=MOST_KEPT_JOBS)
def _low_precision_parameters(job: Job) -> _Parameters:
    """Return the same of what lies in 8 or 4 bits alone."""
    weights = [(part.block, weight) for part in job.layers for weight in low_precision_matrices(part).trainable]
    everything, experts = (
        sum(weight.elements * block.repeats for block, weight in weights if weight.experts >= least) for least in (1, 2)
    )
    return _Parameters(learning=everything, learning_of_experts=experts, all=everything, all_of_experts=experts)


def _rank_share(everything: int, experts: int, layouts: Candidates, job: Job) -> FloatArray:
    """Return a rank's part; where experts take the tensor-parallel ranks, those that it has are whole."""
    held: FloatArray | float = 0.0
    if experts:
        held = experts / layouts.expert_parallel * (layouts.tensor_parallel / expert_tensor_ranks(layouts, job))
    result: FloatArray = (everything - experts + held) / (layouts.tensor_parallel * layouts.pipeline_parallel)
    return result

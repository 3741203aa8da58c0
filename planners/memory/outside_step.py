"""What a job needs outside its steps: loading the weights, writing a checkpoint, evaluating.

How a stack loads and saves stands in its profile. Host bytes are for each GPU of
the fullest node, so that times the node's GPUs they are what the node needs.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, FloatArray, IntArray
from plimsoll.planners.layouts.stages import StageRows
from plimsoll.planners.memory.holdings import Holdings, has_gathering
from plimsoll.planners.memory.programs.outside_steps import evaluation_instants
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.steps.step import EVALUATION
from plimsoll.planners.plans import Spike

LOADING_REASONS = {
    "every_rank": "every rank reads the whole weights into host memory before they go to its GPU",
    "one_a_node": "one rank of each node reads the whole weights into host memory and sends the others their parts",
    "own_shards": "every rank reads its own part of the weights, tensor by tensor",
}
SAVING_REASONS = {
    "sharded": "every rank writes its own part, tensor by tensor",
    "gathered": "tensors are gathered one by one and rank 0 holds all of them in host memory",
    "staged": "every rank copies its part into shared host memory and goes on while it is written",
}
# By whether the trainer keeps the logits of all passes.
EVALUATION_REASONS = {
    False: "a forward pass without gradients, and its logits",
    True: "a forward pass without gradients, beside the logits of the passes before, which the trainer keeps",
}


def spikes_of(asked: Question, index: int, row: int) -> tuple[Spike, ...]:
    """Return the events outside one layout's step on one stage; device bytes are the allocator's live tensors."""
    layouts, rows, job, held = asked.layouts, asked.rows, asked.job, asked.held
    parameters, optimizer = (_at_stage(values, rows, row, index) for values in (held.parameters, held.optimizer))
    is_sharded = bool(_are_sharded(layouts, job)[index])
    loading, saving = _way_of_loading(job, is_sharded=is_sharded), job.profile.outside_step.checkpoint
    gathered = _largest_tensor_bytes(job) if saving == "gathered" and is_sharded else 0.0
    spikes = [
        Spike(
            name="loading",
            device_bytes=math.ceil(parameters),
            host_bytes=int(loading_host_bytes(layouts, job)[index]),
            reason=LOADING_REASONS[loading],
        ),
        Spike(
            name="checkpoint",
            device_bytes=math.ceil(parameters + optimizer + gathered),
            host_bytes=int(_at_stage(saving_host_bytes(layouts, job, held), rows, row, index)),
            reason=SAVING_REASONS[saving],
        ),
    ]
    if job.evaluation is not None:
        # Activations that wait on the host are not asked for: an evaluation keeps none.
        made = replace(asked, active=asked.made)
        spikes.append(
            Spike(
                name=EVALUATION,
                device_bytes=max(
                    int(_at_stage(each.total, rows, row, index)) for each in evaluation_instants(made, job.evaluation)
                ),
                host_bytes=0,
                reason=EVALUATION_REASONS[job.evaluation.keeps_logits],
            )
        )
    return tuple(spikes)


def loaded_bytes(job: Job) -> float:
    """Return the whole model as it is read: what learns and what is frozen, each in its stored width."""
    return sum(
        part.block.repeats
        * (
            job.states.parameter * sum(weight.elements for weight in part.trainable if job.method == "full")
            + job.frozen_bytes * sum(weight.elements for weight in part.frozen)
        )
        for part in job.parts
    )


def saved_weight_bytes(job: Job) -> float:
    """Return the weights that a checkpoint holds: all that learn; of adapted models the adapters alone."""
    return float(job.states.parameter * job.trainable_parameters)


def loading_host_bytes(layouts: Candidates, job: Job) -> FloatArray:
    """Return the host memory that loading takes for each GPU of a node, before anything is offloaded."""
    sharers: dict[str, FloatArray] = {
        "every_rank": np.ones(1),
        "one_a_node": gpus_on_node(layouts, job).astype(np.float64),
        "own_shards": np.full(1, math.inf),
    }
    sharded, unsharded = (sharers[_way_of_loading(job, is_sharded=is_sharded)] for is_sharded in (True, False))
    host: FloatArray = np.ceil(loaded_bytes(job) / np.where(_are_sharded(layouts, job), sharded, unsharded))
    return host


def saving_host_bytes(layouts: Candidates, job: Job, held: Holdings) -> FloatArray:
    """Return the host memory that a checkpoint takes for each GPU of a node, beside all that is offloaded."""
    way = job.profile.outside_step.checkpoint
    if way == "sharded":
        return np.zeros(1)
    return np.ceil(
        saved_weight_bytes(job) / gpus_on_node(layouts, job) if way == "gathered" else held.parameters + held.optimizer
    )


def gpus_on_node(layouts: Candidates, job: Job) -> IntArray:
    """Return how many GPUs of its fullest node each layout uses."""
    return np.minimum(layouts.gpus, job.gpus_per_node)


def _way_of_loading(job: Job, *, is_sharded: bool) -> str:
    way = job.profile.outside_step.loading
    return "every_rank" if way == "one_a_node" and not is_sharded else way


def _largest_tensor_bytes(job: Job) -> float:
    """Return the largest tensor that a full state dict gathers on the device before it goes to the host."""
    largest = max((weight.elements for part in job.parts for weight in part.trainable), default=0)
    return float(largest * job.states.parameter)


def _are_sharded(layouts: Candidates, job: Job) -> BoolArray:
    return has_gathering(layouts.zero_stage, job, "gathered_by_layer", "gathered_once")


def _at_stage(values: FloatArray, rows: StageRows, row: int, index: int) -> float:
    """Return the value of one stage of one layout."""
    return float(np.broadcast_to(values, rows.stage.shape)[row, index])

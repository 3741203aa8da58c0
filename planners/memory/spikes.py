"""What a job needs outside its steps: loading the weights, writing a checkpoint, evaluating.

How a stack loads and saves stands in its profile. Host bytes are for each GPU of
the fullest node, so that times the node's GPUs they are what the node needs.
"""

from __future__ import annotations

import math

import numpy as np

from planners.hardware import Hardware
from planners.layout.candidates import Candidates, FloatArray
from planners.memory.activity import Activity
from planners.memory.evaluation import evaluation_items
from planners.memory.holdings import Holdings, has_weight_policy
from planners.memory.items import EVALUATION
from planners.memory.job import Job
from planners.memory.moment import moment_of
from planners.memory.stages import StageRows
from planners.plans import Spike

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


def spikes_of(
    layouts: Candidates,
    index: int,
    rows: StageRows,
    row: int,
    job: Job,
    held: Holdings,
    active: Activity,
    hardware: Hardware,
) -> tuple[Spike, ...]:
    """Return the moments outside one layout's step on one stage; device bytes are the allocator's live tensors."""
    gpus = int(layouts.gpus[index])
    in_node = min(gpus, hardware.gpus_per_node)
    is_sharded = _is_sharded(layouts, index, job)
    parameters, optimizer = (_at_stage(values, rows, row, index) for values in (held.parameters, held.optimizer))
    spikes = [
        _loading(parameters, job, in_node, is_sharded=is_sharded),
        _saving(parameters + optimizer, job, in_node, is_sharded=is_sharded),
    ]
    if job.evaluation is not None:
        moments = evaluation_items(moment_of(layouts, rows, job, held, active), job.evaluation)
        spikes.append(
            Spike(
                name=EVALUATION,
                device_bytes=max(int(items.stacked(rows.stage.shape)[0, :, row, index].sum()) for items in moments),
                host_bytes=0,
                reason="a forward pass without gradients, with the logits that the trainer keeps",
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


def _loading(resting: float, job: Job, in_node: int, *, is_sharded: bool) -> Spike:
    way = job.profile.spikes.loading
    if way == "one_a_node" and not is_sharded:
        way = "every_rank"
    host = {"every_rank": loaded_bytes(job), "one_a_node": loaded_bytes(job) / in_node, "own_shards": 0.0}[way]
    return Spike(
        name="loading", device_bytes=math.ceil(resting), host_bytes=math.ceil(host), reason=LOADING_REASONS[way]
    )


def _saving(resting: float, job: Job, in_node: int, *, is_sharded: bool) -> Spike:
    way = job.profile.spikes.checkpoint
    device = resting + (_largest_tensor_bytes(job) if way == "gathered" and is_sharded else 0.0)
    host = {"sharded": 0.0, "gathered": saved_weight_bytes(job) / in_node, "staged": resting}[way]
    return Spike(
        name="checkpoint", device_bytes=math.ceil(device), host_bytes=math.ceil(host), reason=SAVING_REASONS[way]
    )


def _largest_tensor_bytes(job: Job) -> float:
    """Return the largest tensor that a full state dict gathers on the device before it goes to the host."""
    largest = max((weight.elements for part in job.parts for weight in part.trainable), default=0)
    return float(largest * job.states.parameter)


def _is_sharded(layouts: Candidates, index: int, job: Job) -> bool:
    return bool(has_weight_policy(layouts.zero_stage, job, "gathered_by_layer", "gathered_once")[index])


def _at_stage(values: FloatArray, rows: StageRows, row: int, index: int) -> float:
    """Return the value of one stage of one layout."""
    return float(np.broadcast_to(values, rows.stage.shape)[row, index])


def host_peak_bytes(resting: FloatArray, spikes: tuple[Spike, ...]) -> int:
    """Return what the host needs a GPU at its worst: loading comes before anything is offloaded, saving on top."""
    before = max((spike.host_bytes for spike in spikes if spike.name == "loading"), default=0)
    beside = max((spike.host_bytes for spike in spikes if spike.name != "loading"), default=0)
    return max(before, int(np.asarray(resting)) + beside)

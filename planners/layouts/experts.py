"""Expert parallelism as an axis: which degrees to try, and what the ranks that share experts have in common.

Experts' ranks are taken from those that hold different tokens: data and context
ranks first. A stack that can (`can.experts_over_tensor`) takes tensor-parallel
ranks too once those do not suffice; each expert then stays whole on its rank.

Source: NVIDIA/Megatron-LM, core/parallel_state.py (`expert_tensor_parallel_size`,
by default the tensor degree, at least 1); pytorch/torchtitan,
distributed/parallel_dims.py (`ep` within data x context, with `etp` 1 x tensor).
"""

from __future__ import annotations

import numpy as np

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, FloatArray, IntArray, once
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.sharding import ExpertTensorDegree
from plimsoll.planners.stacks.profile import Profile


def expert_counts(model: ModelSpec) -> frozenset[int]:
    """Return how many experts the layers have, one number a kind of layer; none for a dense model."""
    return frozenset(weight.experts for block in model.layers for weight in block.weights if weight.experts > 1)


def expert_degrees(question: TrainingQuestion, job: Job) -> list[int]:
    """Return the degrees to try: what the client fixed, or every divisor of the experts where the stack can."""
    if question.layout.expert_parallel is not None:
        return [question.layout.expert_parallel]
    counts = expert_counts(job.model)
    if not counts or not job.profile.can.expert_parallel:
        return [1]
    common = int(np.gcd.reduce(list(counts)))
    return [degree for degree in range(1, common + 1) if common % degree == 0]


def over_expert_degrees(mesh: dict[str, IntArray], question: TrainingQuestion, job: Job) -> dict[str, IntArray]:
    """Return every mesh shape with every degree that its ranks can form; a fixed degree goes with all of them."""
    degrees = np.array(expert_degrees(question, job), dtype=np.int64)
    count = mesh["data_parallel"].size
    if degrees.size == 1:
        return {**mesh, "expert_parallel": np.repeat(degrees, count)}
    spread = {name: np.tile(values, degrees.size) for name, values in mesh.items()}
    spread["expert_parallel"] = np.repeat(degrees, count)
    forms = replicas_form_groups(
        spread["expert_parallel"],
        spread["data_parallel"] * spread["context_parallel"],
        spread["tensor_parallel"],
        over_tensor=job.profile.can.experts_over_tensor,
    )
    return {name: values[forms] for name, values in spread.items()}


def paired_fraction(pipeline_parallel: IntArray, virtual_pipeline: IntArray, micro_batches: IntArray) -> FloatArray:
    """Return the part of a step's passes that run beside another micro-batch's, where the exchange is to be hidden.

    A chunk's forward pass runs beside the backward pass of another once the pipeline is warm; on the last stage, which
    the others wait for, that takes one round of each chunk but one, and one more so that no pass waits for its pair.
    The backward passes that are left at the end have no pair either.

    Source: NVIDIA/Megatron-LM core_v0.16.1, core/pipeline_parallel/schedules.py, get_pp_rank_microbatches, and
    combined_1f1b.py.
    """
    alone = (virtual_pipeline - 1) * pipeline_parallel + 1
    paired: FloatArray = np.maximum(1.0 - alone / np.maximum(micro_batches * virtual_pipeline, 1), 0.0)
    return paired


def ranks_form_groups(layouts: Candidates, job: Job) -> BoolArray:
    """Return where the ranks that may share experts make up whole groups of the degree."""
    replicas = layouts.data_parallel * layouts.context_parallel
    tensor = layouts.tensor_parallel
    over_tensor = job.profile.can.experts_over_tensor
    return replicas_form_groups(layouts.expert_parallel, replicas, tensor, over_tensor=over_tensor)


@once
def expert_tensor_ranks(layouts: Candidates, job: Job) -> IntArray:
    """Return over how many tensor-parallel ranks each expert is still cut: all of them, or one."""
    replicas = layouts.data_parallel * layouts.context_parallel
    cuts = experts_are_cut(job.profile, replicas, layouts.expert_parallel)
    result: IntArray = np.where(cuts, layouts.tensor_parallel, 1)
    return result


def experts_are_cut(profile: Profile, replicas: IntArray, expert_parallel: IntArray) -> BoolArray:
    """Return where tensor-parallel ranks divide each expert between them.

    They do not where experts need those ranks, or where the stack leaves experts
    whole once they are divided.
    """
    policy = profile.sharding_policy(max(profile.can.zero_stages))
    leaves_whole = policy.expert_tensor_degree is not ExpertTensorDegree.TENSOR
    are_cut: BoolArray = expert_parallel == 1 if leaves_whole else replicas % expert_parallel == 0
    return are_cut


@once
def busiest_rank_multiple(layouts: Candidates, job: Job) -> FloatArray:
    """Return the busiest rank's tokens over the mean rank's.

    A rank with all experts has its own tokens, however they are spread; of several
    ranks one cannot get more than all of their tokens.
    """
    if job.expert_imbalance == 1.0:
        return np.ones(1)
    most = np.minimum(job.expert_imbalance, layouts.expert_parallel)
    return np.where(layouts.expert_parallel > 1, most, 1.0)


def replicas_form_groups(degree: IntArray, replicas: IntArray, tensor: IntArray, *, over_tensor: bool) -> BoolArray:
    """Return where so many replicas, or their tensor-parallel ranks too, make up whole groups of the degree."""
    formed: BoolArray = replicas % degree == 0
    if over_tensor:
        formed = formed | ((replicas * tensor) % degree == 0)
    return formed

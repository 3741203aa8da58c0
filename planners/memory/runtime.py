"""What a GPU holds outside the allocator: context, library workspaces, communicators and their buffers."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates, FloatArray, IntArray
from plimsoll.planners.memory.steps.on_rank import NO_BYTES
from plimsoll.planners.stacks.records import RuntimeBytes

FP8_BYTES = 1
NO_RANKS: IntArray = np.zeros(1, dtype=np.int64)


def runtime_bytes(layouts: Candidates, runtime: RuntimeBytes) -> FloatArray:
    """Return context, workspace, a communicator for each mesh axis with more than one rank, and the stack's of all.

    Ranks of a sequence that exchange heads have one, and those of the ring between them another. A communicator of two
    ranks needs fewer channels than a larger one (NVIDIA/nccl issue 964).
    """
    total = np.array(float(runtime.context_bytes + runtime.workspace_bytes))
    for degree in (
        layouts.data_parallel,
        layouts.tensor_parallel,
        layouts.pipeline_parallel,
        layouts.context_all_to_all,
        layouts.context_parallel // layouts.context_all_to_all,
    ):
        total = total + _communicator_bytes(degree, runtime)
    if runtime.world_communicators:
        total = total + runtime.world_communicators * _communicator_bytes(layouts.gpus, runtime)
    return total


def tensor_overlap_bytes(layouts: Candidates, job: Job) -> FloatArray:
    """Return the buffers of an overlap of tensor-parallel traffic that a job asks for: of whole sequences, of chunks.

    Transformer Engine registers one of a sequence for each collective of a layer, six of ten in fp8 where products are
    (pytorch/module/base.py, initialize_ub; Megatron-LM, training/initialize.py, _initialize_tp_communicators). torch's
    async tensor parallelism has a workspace of symmetric memory for each group, which grows to two of the chunks in
    which products are sent (distributed/_symmetric_memory, `get_symm_mem_workspace`).
    """
    overlap = job.profile.overlap
    chunks = overlap.tensor_parallel_chunk_buffers
    if not job.overlap.tensor_parallel or not (overlap.tensor_parallel_buffers or chunks):
        return NO_BYTES
    size, quantized = job.precision.compute_bytes, overlap.tensor_parallel_fp8_buffers
    width = FP8_BYTES if job.precision.compute_format == "fp8" else size
    each = (overlap.tensor_parallel_buffers - quantized) * size + quantized * width
    buffers = each + chunks * size / layouts.tensor_parallel
    whole = layouts.local_tokens(job.sequence_length) * (job.model.hidden_size * buffers)
    return np.where(layouts.tensor_parallel > 1, whole, 0.0)


def _communicator_bytes(ranks: IntArray, runtime: RuntimeBytes) -> IntArray:
    if ranks.max(initial=1) <= 1:
        return NO_RANKS
    by_ranks = np.array([0, 0, runtime.nccl_pair_bytes, runtime.nccl_group_bytes])
    found: IntArray = by_ranks.take(np.minimum(ranks, by_ranks.size - 1))
    return found

"""What a GPU holds outside the allocator: context, library workspaces, communicators."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.layouts.candidates import Candidates, FloatArray, IntArray
from plimsoll.planners.stacks.records import RuntimeBytes


def runtime_bytes(layouts: Candidates, runtime: RuntimeBytes) -> FloatArray:
    """Return context, workspace, a communicator for each mesh axis with more than one rank, and the stack's of all.

    A communicator of two ranks needs fewer channels than a larger one
    (NVIDIA/nccl issue 964).
    """
    total = np.array(float(runtime.context_bytes + runtime.workspace_bytes))
    for degree in (
        layouts.data_parallel,
        layouts.tensor_parallel,
        layouts.pipeline_parallel,
        layouts.context_parallel,
    ):
        total = total + _communicator_bytes(degree, runtime)
    if runtime.world_communicators:
        total = total + runtime.world_communicators * _communicator_bytes(layouts.gpus, runtime)
    return total


def _communicator_bytes(ranks: IntArray, runtime: RuntimeBytes) -> IntArray:
    found: IntArray = np.where(ranks > 2, runtime.nccl_group_bytes, np.where(ranks == 2, runtime.nccl_pair_bytes, 0))
    return found

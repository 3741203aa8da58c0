"""What a GPU holds outside the allocator: context, library workspaces, communicators."""

from __future__ import annotations

import numpy as np

from planners.layout.candidates import Candidates, FloatArray
from planners.memory.profile import RuntimeBytes


def runtime_bytes(layouts: Candidates, runtime: RuntimeBytes) -> FloatArray:
    """Return context, workspace and one communicator for each mesh axis with more than one rank.

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
        total = total + np.where(
            degree > 2, runtime.nccl_group_bytes, np.where(degree == 2, runtime.nccl_pair_bytes, 0)
        )
    return total

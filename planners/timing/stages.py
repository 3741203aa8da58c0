"""Which stage of a pipeline sets the pace: one more layer than the others, or the head.

Equal layers a stage is what Megatron does. nanotron deals blocks out by what they
compute instead (`planners/layouts/stages.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import IntArray
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.layouts.stages import compute_weighted_stages
from plimsoll.planners.timing.efficiency import StackEfficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShape:
    """Layers of the fullest stage without the head, and of the stage that has it."""

    most: IntArray
    with_head: IntArray


def stage_shape(pipeline_parallel: IntArray, job: Job, stack: StackEfficiency) -> StageShape:
    """Return the two stages that can be the slowest, for every layout."""
    layers = job.model.num_layers
    if stack.stage_policy == "layers":
        return StageShape(most=-(-layers // pipeline_parallel), with_head=layers // pipeline_parallel)
    degrees, place = distinct(pipeline_parallel)
    most, with_head = np.array([_by_cost(job, degree) for degree in degrees.tolist()], dtype=np.int64).T
    return StageShape(most=most[place], with_head=with_head[place])


def _by_cost(job: Job, degree: int) -> tuple[int, int]:
    """Return layers of the fullest stage without the head, and of the head's."""
    dealt = compute_weighted_stages(job.model, degree)
    with_head = dealt.layers[dealt.head]
    others = dealt.layers[: dealt.head] + dealt.layers[dealt.head + 1 :]
    return max(others, default=with_head), with_head

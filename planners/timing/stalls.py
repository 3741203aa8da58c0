"""Runs that took many times as long as runs like them: kept out of the estimate, said, and within the upper bound.

A sweep of nanotron's layouts on one cluster has two modes. In the slow one a stage of a pipeline waits about half a
second for each of its neighbours in every micro-batch, on one node as on 64, whatever the run computes. No layout
decides which mode a run is in, so the estimate is that of the other one.
"""

from __future__ import annotations

import numpy as np

from plimsoll.planners.ground.figures import duration
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates, FloatArray
from plimsoll.planners.plans import Layout, Memory, Step
from plimsoll.planners.timing.efficiency import Efficiency, StalledRuns

MOST_NEIGHBOURS = 2  # of a stage in the middle of a pipeline
# Above this part of what a GPU offers a plan is called nearly full.
NEARLY_FULL_FRACTION = 0.88


def stall_seconds(layouts: Candidates, job: Job, efficiency: Efficiency) -> FloatArray:
    """Return how much longer a step takes in the stack's slow mode; zero where none was seen.

    A stage meets each of its neighbours once forward and once backward in every
    micro-batch, and waits once for each of them; filling and draining pass every boundary
    but one more.
    """
    others = layouts.pipeline_parallel - 1
    waits = np.minimum(others, MOST_NEIGHBOURS) * layouts.micro_batches(job.global_batch_size) + others
    result: FloatArray = waits.astype(np.float64) * efficiency.stack.stall_seconds
    return result


def risks(layout: Layout, step: Step, memory: Memory, hardware: Hardware, efficiency: Efficiency) -> tuple[str, ...]:
    """Return a sentence on each thing that may make the step longer than estimated, with its evidence."""
    fullness = memory.peak_bytes / memory.limit_bytes
    like = _like(layout, fullness, hardware, efficiency)
    found = [] if like is None else [_stall_risk(like, layout, step)]
    if NEARLY_FULL_FRACTION < fullness <= 1.0:
        found.append(
            f"The plan uses {fullness:.0%} of the memory the GPU offers. An allocator at its limit frees cached blocks "
            "and asks the driver again, which stalls the GPU. Published runs planned as full kept their pace, so the "
            "estimate does not include it."
        )
    return tuple(found)


def _stall_risk(like: StalledRuns, layout: Layout, step: Step) -> str:
    of_all = f"{like.stalled} of {like.runs} measured {layout.framework}"
    if not like.with_pipeline:
        return (
            f"{of_all} runs {like.described} with tensor parallelism and no pipeline took over twice as long as "
            "estimated, for reasons that their layouts do not show. The estimate leaves this out."
        )
    return (
        f"{of_all} pipelines {like.described} ran in a slow mode in which each stage waits about half a second for "
        f"each neighbour in every micro-batch. The estimate leaves this out; the upper bound of "
        f"{duration(step.high_seconds)} per step includes it."
    )


def _like(layout: Layout, fullness: float, hardware: Hardware, efficiency: Efficiency) -> StalledRuns | None:
    """Return the first of the stack's measured runs that the layout is like."""
    nodes = -(-layout.gpus // hardware.gpus_per_node)
    for runs in efficiency.stack.stalled_runs:
        alike = runs.with_pipeline == (layout.pipeline_parallel > 1)
        large = nodes >= runs.nodes and layout.tensor_parallel >= runs.tensor_parallel
        if alike and large and fullness >= runs.memory_fraction:
            return runs
    return None

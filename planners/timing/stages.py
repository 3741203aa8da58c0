"""Which stage of a pipeline sets the pace: one more layer than the others, or the head.

Equal layers a stage is what Megatron does. nanotron places blocks by what they
compute instead: it fills stage after stage until the running cost passes the
stage's even share of the whole (`nanotron/trainer.py`, `get_block_compute_costs`
of its Llama: matrix elements of a layer, and of the head).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planners.architecture import Block
from planners.layout.candidates import IntArray
from planners.memory.job import Job
from planners.timing.efficiency import StackEfficiency


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
    degrees, place = np.unique(pipeline_parallel, return_inverse=True)
    layer_cost = sum(_matrix_elements(part.block) * part.block.repeats for part in job.layers) / layers
    head_cost = _matrix_elements(job.head.block)
    shapes = [_by_cost(int(degree), layers, layer_cost, head_cost) for degree in degrees]
    most, with_head = np.array(shapes, dtype=np.int64).T
    return StageShape(most=most[place], with_head=with_head[place])


def _matrix_elements(block: Block) -> int:
    shapes = [(op.matmul_shape, op.copies) for op in block.operations]
    return sum(shape[0] * shape[1] * copies for shape, copies in shapes if shape is not None)


def _by_cost(stages: int, layers: int, layer_cost: float, head_cost: float) -> tuple[int, int]:
    """Return layers of the fullest stage without the head, and of the head's, filling one stage after another."""
    share = (layers * layer_cost + head_cost) / stages
    counts = [0] * stages
    stage = 0
    for layer in range(layers):
        counts[stage] += 1
        if stage < stages - 1 and (layer + 1) * layer_cost > (stage + 1) * share:
            stage += 1
    others = counts[:stage] + counts[stage + 1 :]
    return max(others, default=counts[stage]), counts[stage]

"""The sizes that a run can shrink and grow to with the same global batch.

Tensor, pipeline and context parallelism and the micro-batch stay; replicas come
and go and accumulation follows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planners.layout.candidates import BoolArray, Candidates
from planners.layout.rules import RULES_OF_REPLICAS, obey
from planners.memory.job import Job

# Elastic sizes are offered from a quarter of the plan's GPUs to four times as many.
ELASTIC_SPAN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """One layout on every number of replicas that it could have, as a list; `own` is its place among them."""

    layouts: Candidates
    own: int

    def elastic_gpus(self, job: Job, fits: BoolArray) -> tuple[int, ...]:
        """Return the GPU counts on which the layout still runs; `fits` says where memory does."""
        runs = obey(self.layouts, job, rules=RULES_OF_REPLICAS).allowed & fits
        return tuple(self.layouts.gpus[runs].tolist())


def resized(layouts: Candidates, index: int, global_batch_size: int) -> Resized:
    """Return one layout of a list, which obeys every rule, with as many replicas as divide its micro-batches."""
    layout = layouts.take([index])
    replicas, group = int(layout.data_parallel[0]), int(layout.shard_group[0])
    most = global_batch_size // int(layout.micro_batch_size[0])
    is_grouped = group != replicas
    sizes = [
        degree
        for degree in range(max(replicas // ELASTIC_SPAN, 1), min(replicas * ELASTIC_SPAN, most) + 1)
        if most % degree == 0 and not (is_grouped and degree % group)
    ]
    degrees = np.array(sizes, dtype=np.int64)
    alike = layout.take(np.zeros(degrees.size, dtype=np.int64))
    return Resized(
        layouts=replace(alike, data_parallel=degrees, shard_group=alike.shard_group if is_grouped else degrees),
        own=sizes.index(replicas),
    )

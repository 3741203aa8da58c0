"""The sizes that a run can shrink and grow to with the same global batch.

Tensor, pipeline and context parallelism and the micro-batch stay; replicas come
and go and accumulation follows. Only sizes on which the layout can exist are
named, so that each of them has an account.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates
from plimsoll.planners.search.rules.every import RULES_OF_REPLICAS, obey

# Elastic sizes are offered from a quarter of the plan's GPUs to four times as many.
ELASTIC_SPAN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """One layout on every number of replicas that it can have, as a list; `own` is its place among them."""

    layouts: Candidates
    own: int

    def elastic_gpus(self, fits: BoolArray) -> tuple[int, ...]:
        """Return the GPU counts on which the layout still runs; `fits` says where memory does."""
        return tuple(self.layouts.gpus[fits].tolist())


def resized(layouts: Candidates, index: int, job: Job) -> Resized:
    """Return one layout of a list, which obeys every rule, with every number of replicas on which it still does."""
    layout = layouts.take([index])
    replicas = int(layout.data_parallel[0])
    sizes = _with_replicas(layout, _replica_counts(layout, job.global_batch_size))
    possible = sizes.take(obey(sizes, job, rules=RULES_OF_REPLICAS).allowed)
    return Resized(layouts=possible, own=possible.data_parallel.tolist().index(replicas))


def _replica_counts(layout: Candidates, global_batch_size: int) -> list[int]:
    """Return the numbers of replicas that divide the layout's micro-batches and are whole shard groups."""
    replicas, group = int(layout.data_parallel[0]), int(layout.shard_group[0])
    most = global_batch_size // int(layout.micro_batch_size[0])
    is_grouped = group != replicas
    return [
        degree
        for degree in range(max(replicas // ELASTIC_SPAN, 1), min(replicas * ELASTIC_SPAN, most) + 1)
        if most % degree == 0 and not (is_grouped and degree % group)
    ]


def _with_replicas(layout: Candidates, counts: list[int]) -> Candidates:
    """Return the layout on each number of replicas; a group of all replicas stays one of all."""
    degrees = np.array(counts, dtype=np.int64)
    alike = layout.take(np.zeros(degrees.size, dtype=np.int64))
    is_grouped = bool((layout.shard_group != layout.data_parallel)[0])
    return replace(alike, data_parallel=degrees, shard_group=alike.shard_group if is_grouped else degrees)

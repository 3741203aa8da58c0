"""What the caching allocator keeps in pools of streams other than the main one.

A freed block is handed out again only on the stream that allocated it (torch, c10/cuda/CUDACachingAllocator.cpp,
`get_free_block`), so that each stream's pool grows to its own most, whenever that is. FSDP2 gathers weights on a stream
of its own and reduces gradients on another, where the shards stay (torch, distributed/fsdp/_fully_shard/
_fsdp_collectives.py, `foreach_all_gather`, `foreach_reduce`). The copies that are computed with, and the buffer that is
reduced from, are the main stream's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import FloatArray
from plimsoll.planners.memory.programs.choice import Prepared, pool_peaks
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, plus

# Names of pieces as the programs have them (`sharded_units.py`, `sharded.py`, `at_rest.py`).
GATHERED = frozenset({"gathered", "gathered ahead", "experts gathered ahead", "experts gathered again"})
REDUCED = frozenset({"shards", "outputs of reductions", "gradients of the micro-batches before"})
POOLS = (GATHERED, REDUCED)


class PoolPeaks(NamedTuple):
    """The most that a rank of each stage holds in its main pool, and the sum of the most of every other."""

    main: FloatArray
    others: FloatArray


def stream_peaks(programs: Iterable[Prepared], job: Job) -> PoolPeaks:
    """Return the peaks of the allocator's pools, in whatever shape the layouts need; a single one's in most stacks."""
    main, *others = pool_peaks(programs, POOLS if job.profile.runtime.stream_pools else ())
    return PoolPeaks(main, functools.reduce(plus, others, NO_BYTES))

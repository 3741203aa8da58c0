"""DeepSpeed's own code in a trace: its engine, of the ranks that can need the most."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.stacks.deepspeed.engine import DeepSpeedEngine
from plimsoll.service.worker.stacks.deepspeed.ranks import deciding_ranks
from plimsoll.service.worker.stacks.deepspeed.runnable import runnable_deepspeed
from plimsoll.service.worker.training.own_code import OwnCode


def _running(job: TraceJob, rank: int) -> AbstractContextManager[Any]:
    return runnable_deepspeed(rank, job.world_size)


OWN_CODE = OwnCode(engine=DeepSpeedEngine, running=_running, ranks=deciding_ranks)

"""DeepSpeed's own code in a trace: its engine, of the rank that needs the most."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.stacks.deepspeed.engine import DeepSpeedEngine, heaviest_rank
from plimsoll.service.worker.stacks.deepspeed.runnable import runnable_deepspeed
from plimsoll.service.worker.training.own_code import OwnCode


def _running(job: TraceJob) -> AbstractContextManager[Any]:
    return runnable_deepspeed(heaviest_rank(job), job.world_size)


OWN_CODE = OwnCode(engine=DeepSpeedEngine, running=_running, rank=heaviest_rank)

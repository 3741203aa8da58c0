"""DeepSpeed's engine as a trace stands in for it: which optimizer a ZeRO stage has."""

from __future__ import annotations

from typing import Any

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.stacks.deepspeed.zero.flat import FlatEngine
from plimsoll.service.worker.stacks.deepspeed.zero.settings import zero_settings
from plimsoll.service.worker.stacks.deepspeed.zero.sharded import ShardedEngine
from plimsoll.service.worker.stacks.deepspeed.zero.whole import WholeEngine
from plimsoll.service.worker.training.engine import Engine
from plimsoll.service.worker.training.precision import parameter_dtype

ALL_WHOLE, OPTIMIZER_DIVIDED, GRADIENTS_DIVIDED = range(3)


def zero_engine(job: TraceJob, stack: Stack, model: Any) -> Engine:
    """Return the engine of the job's ZeRO stage over what of a model learns.

    Source: DeepSpeed 0.19.8, runtime/engine.py, `_configure_optimizer`.
    """
    settings = zero_settings(job.framework, parameter_dtype(job, stack))
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if job.zero_stage == ALL_WHOLE:
        return WholeEngine(job.optimizer, learning, ranks=job.data_parallel)
    if job.zero_stage in (OPTIMIZER_DIVIDED, GRADIENTS_DIVIDED):
        return FlatEngine(
            job.optimizer,
            learning,
            ranks=job.data_parallel,
            settings=settings,
            divides_gradients=job.zero_stage == GRADIENTS_DIVIDED,
        )
    return ShardedEngine(job.optimizer, model, ranks=job.data_parallel, settings=settings)

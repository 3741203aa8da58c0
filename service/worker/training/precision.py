"""Which number formats a job keeps its parameters in and computes with."""

from __future__ import annotations

import contextlib

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from plimsoll.service.worker.jobs.job import FP8_MIXED, TraceJob
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.jobs.states import is_fully_sharded, keeps_master_weights

# Of fp8-mixed only the matrix products are in fp8.
MIXED_DTYPES = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16, FP8_MIXED: torch.bfloat16}


def parameter_dtype(job: TraceJob, stack: Stack) -> torch.dtype:
    """Return the format of the model's own parameters; a frozen model needs none wider than it computes with."""
    if job.trains_adapters and job.precision in MIXED_DTYPES:
        return MIXED_DTYPES[job.precision]
    if job.precision == "bf16":
        return torch.bfloat16
    if keeps_master_weights(job, stack):
        return MIXED_DTYPES[job.precision]
    return torch.float32  # tf32 takes four bytes too


def adapter_dtype(job: TraceJob, stack: Stack) -> torch.dtype:
    """Return the format of adapters: peft keeps them in fp32 beside a 16-bit base, if not told otherwise.

    Where the optimizer has an fp32 copy of what learns they have 16 bits themselves.
    """
    if keeps_master_weights(job, stack):
        return MIXED_DTYPES[job.precision]
    return torch.bfloat16 if job.precision == "bf16" else torch.float32


def sharding_policy(job: TraceJob, stack: Stack) -> MixedPrecisionPolicy:
    """Return FSDP2's policy: mixed precision computes in 16 bits and reduces in fp32, as some stacks always do."""
    if job.precision in MIXED_DTYPES and stack.reduces_as_it_computes:
        dtype = MIXED_DTYPES[job.precision]
        return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype, output_dtype=dtype)
    if job.precision in MIXED_DTYPES:
        return MixedPrecisionPolicy(param_dtype=MIXED_DTYPES[job.precision], reduce_dtype=torch.float32)
    return MixedPrecisionPolicy(reduce_dtype=torch.float32) if stack.always_reduces_in_fp32 else MixedPrecisionPolicy()


def computing(job: TraceJob, stack: Stack, device_type: str = "cpu") -> contextlib.AbstractContextManager[object]:
    """Return the context of the forward pass: autocast where fp32 parameters are cast as they are used."""
    if job.precision not in MIXED_DTYPES or is_fully_sharded(job, stack) or keeps_master_weights(job, stack):
        return contextlib.nullcontext()
    return torch.autocast(device_type, dtype=MIXED_DTYPES[job.precision])

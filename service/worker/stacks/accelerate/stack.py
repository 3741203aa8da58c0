"""Hugging Face accelerate over transformers' own model: FSDP2 or DistributedDataParallel, wrapped by its own code."""

from __future__ import annotations

from plimsoll.service.worker.jobs.rule import Subject
from plimsoll.service.worker.jobs.stack import Notes, Stack
from plimsoll.service.worker.stacks.accelerate.jobs import is_wrapped_by_accelerate
from plimsoll.service.worker.stacks.accelerate.rules import VERSIONS_ARE_THE_WORKER_S

STACK = Stack(
    name="accelerate",
    gathers_logits=True,
    loss_in_model=True,
    trains_adapters=True,
    has_gradient_buckets=True,
    takes_liger_kernels=True,
    # What a device runs in place of accelerate's own code is cut and reduced as that does it.
    wraps_vocabulary=True,
    reduces_as_it_computes=True,
    own_wrapper="accelerate",
    runs_own_wrapper=is_wrapped_by_accelerate,
    own_trainer="trl",
    evaluates=True,
    notes=Notes(
        engine=(
            "accelerate's own code wrapped the model, cast and reduced, as transformers' Trainer calls it. "
            "Weights are there from the start: none is loaded."
        ),
    ),
    rules={Subject.STACK: (VERSIONS_ARE_THE_WORKER_S,)},
    own_code=f"{__package__}.own_code",
)

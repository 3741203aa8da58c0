"""transformers' Trainer under DistributedDataParallel; on one rank all that it would run is what a trace runs.

Source: torch 2.13, nn/parallel/distributed.py.
"""

from __future__ import annotations

from plimsoll.service.worker.jobs.stack import Stack

STACK = Stack(
    name="ddp",
    gathers_logits=True,
    loss_in_model=True,
    is_plain_on_one_rank=True,
    trains_adapters=True,
    has_gradient_buckets=True,
    takes_liger_kernels=True,
)

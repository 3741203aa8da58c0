"""The textbook's mixed precision: 2 + 2 + 12 bytes a parameter."""

from __future__ import annotations

from plimsoll.service.worker.jobs.stack import Replication, Stack

STACK = Stack(
    name="reference",
    loss_in_model=True,
    trains_adapters=True,
    replication=Replication.MASTER_WEIGHTS,
)

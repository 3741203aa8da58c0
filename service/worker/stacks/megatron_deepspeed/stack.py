"""Megatron-DeepSpeed: why it is not traced, although it shards as a traced stack does."""

from __future__ import annotations

from plimsoll.service.worker.jobs.stack import Stack

STACK = Stack(name="megatron-deepspeed", untraced="its ZeRO stages are its own engine's, not torch's")

"""Megatron-Bridge: why it is not traced, although Megatron-Core, which it runs, is."""

from __future__ import annotations

from plimsoll.service.worker.jobs.stack import Stack

STACK = Stack(name="megatron-bridge", untraced="its 16-bit gradient buffers are not traced; Megatron-LM's are")

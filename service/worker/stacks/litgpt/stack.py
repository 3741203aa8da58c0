"""LitGPT: why it is not traced, although it shards as a traced stack does."""

from __future__ import annotations

from plimsoll.service.worker.jobs.stack import Stack

STACK = Stack(name="litgpt", untraced="its model keeps one fused query, key and value, and FSDP1 shards it")

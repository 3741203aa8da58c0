"""Composer: why it is not traced, although it shards as a traced stack does."""

from __future__ import annotations

from plimsoll.service.worker.jobs.stack import Stack

STACK = Stack(name="composer", untraced="it trains with FSDP1, whose flat parameters and hooks no trace has")

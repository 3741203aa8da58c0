"""nanotron: why it is not traced, although it shards as a traced stack does."""

from __future__ import annotations

from plimsoll.service.worker.jobs.stack import Stack

STACK = Stack(name="nanotron", untraced="its layers and its tensor parallelism are its own")

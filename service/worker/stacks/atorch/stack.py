"""ATorch: why it is not traced, although it shards as a traced stack does."""

from __future__ import annotations

from plimsoll.service.worker.jobs.stack import Stack

STACK = Stack(name="atorch", untraced="its strategies change the model's code by rules of their own")

"""torchtune: why it is not traced, although it shards as a traced stack does."""

from __future__ import annotations

from plimsoll.service.worker.jobs.stack import Stack

STACK = Stack(name="torchtune", untraced="its layers and its loss in chunks are its own")

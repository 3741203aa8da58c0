"""What stands in for DeepSpeed's own code: its engine."""

from __future__ import annotations

from plimsoll.service.worker.stacks.deepspeed.zero.engine import zero_engine
from plimsoll.service.worker.training.own_code import OwnCode

OWN_CODE = OwnCode(engine=zero_engine)

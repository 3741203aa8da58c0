"""DeepSpeed: ZeRO by an engine of its own, over transformers' model."""

from __future__ import annotations

from plimsoll.service.worker.jobs.rule import Subject
from plimsoll.service.worker.jobs.stack import Notes, Replication, Stack
from plimsoll.service.worker.stacks.deepspeed.rules import RULES_OF_THE_ENGINE

STACK = Stack(
    name="deepspeed",
    program="DeepSpeed",
    gathers_logits=True,
    loss_in_model=True,
    trains_adapters=True,
    replication=Replication.MASTER_WEIGHTS,
    has_own_engine=True,
    notes=Notes(
        engine=(
            "DeepSpeed's engine is stood in for after its source (0.19.8): flat buffers, buckets, gathers and copies "
            "are operations, of the last rank at stages 1 and 2, with the sizes that the plan's launch file names."
        )
    ),
    rules={Subject.SHARDING: RULES_OF_THE_ENGINE},
    own_code=f"{__package__}.own_code",
)

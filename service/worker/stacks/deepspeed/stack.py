"""DeepSpeed: ZeRO by an engine of its own, over transformers' model. A trace runs that engine."""

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
    own_engine="deepspeed",
    notes=Notes(
        engine=(
            "DeepSpeed's own engine ran, with the sizes that the plan's launch file names: at stages 1 and 2 as each "
            "rank that can need the most, and without its optimizers' kernels, which allocate nothing. What it "
            "compiles, Muon's iterations, ran operation by operation."
        ),
        offload=(
            "DeepSpeed's own engine moves the states between the device and its host, copies and pinned buffers "
            "included; what it writes to drives is written to no file."
        ),
    ),
    rules={Subject.SHARDING: RULES_OF_THE_ENGINE},
    own_code=f"{__package__}.own_code",
)

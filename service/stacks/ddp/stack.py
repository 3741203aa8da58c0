"""DistributedDataParallel, by any of the programs that start it: its launch files."""

from __future__ import annotations

from plimsoll.service.launch.script import Script
from plimsoll.service.stacks.accelerate.adapters import BITSANDBYTES, PEFT
from plimsoll.service.stacks.accelerate.launch import ACCELERATE
from plimsoll.service.stacks.accelerate.trainer import TRANSFORMERS
from plimsoll.service.stacks.ddp.horovod import HOROVOD, HOROVOD_HOSTS
from plimsoll.service.stacks.fsdp2.launch import torchtitan_script, torchtitan_target
from plimsoll.service.stacks.stack import Stack

SCRIPT = Script(words=torchtitan_script)
STACK = Stack(
    name="ddp",
    files=(torchtitan_target(SCRIPT), ACCELERATE, TRANSFORMERS, PEFT, BITSANDBYTES, HOROVOD, HOROVOD_HOSTS),
    script=SCRIPT,
)

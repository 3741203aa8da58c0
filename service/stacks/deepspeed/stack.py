"""DeepSpeed: its launch files, and how its commands are read."""

from __future__ import annotations

from plimsoll.service.launch.dlrover import dlrover
from plimsoll.service.launch.script import Script
from plimsoll.service.launch.torchrun import torchrun
from plimsoll.service.stacks.accelerate.adapters import BITSANDBYTES, PEFT
from plimsoll.service.stacks.deepspeed.accelerate import ACCELERATE, TRANSFORMERS
from plimsoll.service.stacks.deepspeed.command import LAUNCHER_FLAGS
from plimsoll.service.stacks.deepspeed.launch import DEEPSPEED
from plimsoll.service.stacks.stack import Stack

SCRIPT = Script()
STACK = Stack(
    name="deepspeed",
    targets=(torchrun(SCRIPT), DEEPSPEED, ACCELERATE, TRANSFORMERS, PEFT, BITSANDBYTES, dlrover(SCRIPT)),
    launchers={"deepspeed": LAUNCHER_FLAGS},
)

"""DeepSpeed: its launch files, and how its commands are read."""

from __future__ import annotations

from plimsoll.service.stacks.accelerate.adapters import BITSANDBYTES, PEFT
from plimsoll.service.stacks.deepspeed.accelerate import ACCELERATE, TRANSFORMERS
from plimsoll.service.stacks.deepspeed.command import LAUNCHER_FLAGS
from plimsoll.service.stacks.deepspeed.launch import DEEPSPEED
from plimsoll.service.stacks.stack import Stack

STACK = Stack(
    name="deepspeed",
    files=(DEEPSPEED, ACCELERATE, TRANSFORMERS, PEFT, BITSANDBYTES),
    launchers={"deepspeed": LAUNCHER_FLAGS},
)

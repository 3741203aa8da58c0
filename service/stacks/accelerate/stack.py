"""Hugging Face's stack: Accelerate, the Trainer and peft: its launch files, and how its commands are read."""

from __future__ import annotations

from plimsoll.service.stacks.accelerate.adapters import BITSANDBYTES, PEFT
from plimsoll.service.stacks.accelerate.command import LAUNCHER_FLAGS, READER
from plimsoll.service.stacks.accelerate.launch import ACCELERATE
from plimsoll.service.stacks.accelerate.trainer import TRANSFORMERS
from plimsoll.service.stacks.stack import Stack

STACK = Stack(
    name="accelerate",
    files=(ACCELERATE, TRANSFORMERS, PEFT, BITSANDBYTES),
    launchers={"accelerate": LAUNCHER_FLAGS},
    reader=READER,
)

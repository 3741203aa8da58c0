"""Hugging Face's stack: Accelerate, the Trainer and peft: its launch files, and how its commands are read."""

from __future__ import annotations

from plimsoll.service.launch.dlrover import dlrover
from plimsoll.service.launch.script import Script
from plimsoll.service.launch.torchrun import torchrun
from plimsoll.service.stacks.accelerate.adapters import BITSANDBYTES, PEFT
from plimsoll.service.stacks.accelerate.command import LAUNCHER_FLAGS, READER
from plimsoll.service.stacks.accelerate.launch import ACCELERATE
from plimsoll.service.stacks.accelerate.trainer import TRANSFORMERS
from plimsoll.service.stacks.stack import Stack

SCRIPT = Script()
STACK = Stack(
    name="accelerate",
    targets=(torchrun(SCRIPT), ACCELERATE, TRANSFORMERS, PEFT, BITSANDBYTES, dlrover(SCRIPT)),
    launchers={"accelerate": LAUNCHER_FLAGS},
    reader=READER,
)

"""The textbook's stack, which no program is: its launch files."""

from __future__ import annotations

from plimsoll.service.launch.dlrover import dlrover
from plimsoll.service.launch.script import Script
from plimsoll.service.launch.torchrun import torchrun
from plimsoll.service.stacks.megatron.paddle import PADDLE
from plimsoll.service.stacks.stack import Stack

SCRIPT = Script()
STACK = Stack(name="reference", targets=(torchrun(SCRIPT), dlrover(SCRIPT), PADDLE))

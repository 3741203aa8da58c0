"""torchtitan: its launch files."""

from __future__ import annotations

from plimsoll.service.launch.dlrover import dlrover
from plimsoll.service.launch.torchrun import torchrun
from plimsoll.service.stacks.fsdp2.launch import SCRIPT, torchtitan_target
from plimsoll.service.stacks.stack import Stack

STACK = Stack(name="fsdp2", targets=(torchrun(SCRIPT), torchtitan_target(SCRIPT), dlrover(SCRIPT)))

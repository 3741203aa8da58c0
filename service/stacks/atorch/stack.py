"""ATorch: its launch files."""

from __future__ import annotations

from plimsoll.service.launch.dlrover import dlrover
from plimsoll.service.launch.script import Script
from plimsoll.service.launch.torchrun import torchrun
from plimsoll.service.stacks.atorch.launch import ATORCH
from plimsoll.service.stacks.stack import Stack

SCRIPT = Script()
STACK = Stack(name="atorch", targets=(torchrun(SCRIPT), ATORCH, dlrover(SCRIPT)))

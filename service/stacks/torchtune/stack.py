"""torchtune: its launch files."""

from __future__ import annotations

from plimsoll.service.launch.dlrover import dlrover
from plimsoll.service.launch.script import Script
from plimsoll.service.launch.torchrun import torchrun
from plimsoll.service.stacks.stack import Stack
from plimsoll.service.stacks.torchtune.launch import TORCHTUNE

SCRIPT = Script()
STACK = Stack(name="torchtune", targets=(torchrun(SCRIPT), TORCHTUNE, dlrover(SCRIPT)))

"""nanotron: its launch files."""

from __future__ import annotations

from plimsoll.service.launch.dlrover import dlrover
from plimsoll.service.launch.torchrun import torchrun
from plimsoll.service.stacks.nanotron.launch import NANOTRON, SCRIPT
from plimsoll.service.stacks.stack import Stack

STACK = Stack(name="nanotron", targets=(torchrun(SCRIPT), NANOTRON, dlrover(SCRIPT)))

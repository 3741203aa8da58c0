"""LitGPT: its launch files."""

from __future__ import annotations

from plimsoll.service.launch.dlrover import dlrover
from plimsoll.service.launch.script import Script
from plimsoll.service.launch.torchrun import torchrun
from plimsoll.service.stacks.litgpt.launch import LITGPT
from plimsoll.service.stacks.stack import Stack

SCRIPT = Script()
STACK = Stack(name="litgpt", targets=(torchrun(SCRIPT), LITGPT, dlrover(SCRIPT)))

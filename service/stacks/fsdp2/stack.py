"""torchtitan: its launch files, and how its commands are read."""

from __future__ import annotations

from plimsoll.service.stacks.fsdp2.command import READER
from plimsoll.service.stacks.fsdp2.launch import SCRIPT, torchtitan_target
from plimsoll.service.stacks.stack import Stack

STACK = Stack(name="fsdp2", files=(torchtitan_target(SCRIPT),), script=SCRIPT, reader=READER)

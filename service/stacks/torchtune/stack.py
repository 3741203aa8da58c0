"""torchtune: its launch files."""

from __future__ import annotations

from plimsoll.service.stacks.stack import Stack
from plimsoll.service.stacks.torchtune.launch import TORCHTUNE

STACK = Stack(name="torchtune", files=(TORCHTUNE,))

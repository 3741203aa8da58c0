"""ATorch: its launch files."""

from __future__ import annotations

from plimsoll.service.stacks.atorch.launch import ATORCH
from plimsoll.service.stacks.stack import Stack

STACK = Stack(name="atorch", files=(ATORCH,))

"""The textbook's stack, which no program is: its launch files."""

from __future__ import annotations

from plimsoll.service.launch.paddle import PADDLE
from plimsoll.service.stacks.stack import Stack

STACK = Stack(name="reference", other_programs=(PADDLE,))

"""The textbook, which is no program: its launch files start a script of the reader's own, or Paddle with the layout."""

from __future__ import annotations

from plimsoll.service.launch.paddle import PADDLE
from plimsoll.service.stacks.stack import Stack

STACK = Stack(name="reference", other_programs=(PADDLE,))

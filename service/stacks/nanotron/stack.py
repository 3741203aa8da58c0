"""nanotron: its launch files."""

from __future__ import annotations

from plimsoll.service.stacks.nanotron.launch import NANOTRON, SCRIPT
from plimsoll.service.stacks.stack import Stack

STACK = Stack(name="nanotron", files=(NANOTRON,), script=SCRIPT)

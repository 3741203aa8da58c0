"""LitGPT: its launch files."""

from __future__ import annotations

from plimsoll.service.stacks.litgpt.launch import LITGPT
from plimsoll.service.stacks.stack import Stack

STACK = Stack(name="litgpt", files=(LITGPT,))

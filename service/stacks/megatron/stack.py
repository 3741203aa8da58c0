"""Megatron-LM: its launch files, and how its commands are read."""

from __future__ import annotations

from plimsoll.service.launch.paddle import PADDLE
from plimsoll.service.stacks.megatron.accelerate import ACCELERATE
from plimsoll.service.stacks.megatron.command import READER
from plimsoll.service.stacks.megatron.launch import MEGATRON, SCRIPT
from plimsoll.service.stacks.megatron.pai import PAI_MEGATRON
from plimsoll.service.stacks.stack import Stack

STACK = Stack(
    name="megatron",
    files=(ACCELERATE, MEGATRON, PAI_MEGATRON),
    script=SCRIPT,
    other_programs=(PADDLE,),
    reader=READER,
)

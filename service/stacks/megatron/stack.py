"""Megatron-LM: its launch files, and how its commands are read."""

from __future__ import annotations

from plimsoll.service.launch.dlrover import dlrover
from plimsoll.service.launch.torchrun import torchrun
from plimsoll.service.stacks.megatron.accelerate import ACCELERATE
from plimsoll.service.stacks.megatron.command import READER
from plimsoll.service.stacks.megatron.launch import MEGATRON, SCRIPT
from plimsoll.service.stacks.megatron.paddle import PADDLE
from plimsoll.service.stacks.megatron.pai import PAI_MEGATRON
from plimsoll.service.stacks.stack import Stack

STACK = Stack(
    name="megatron",
    targets=(torchrun(SCRIPT), ACCELERATE, MEGATRON, PAI_MEGATRON, dlrover(SCRIPT), PADDLE),
    reader=READER,
)

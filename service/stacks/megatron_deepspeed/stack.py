"""Megatron-DeepSpeed: its launch files."""

from __future__ import annotations

from plimsoll.service.launch.dlrover import dlrover
from plimsoll.service.launch.torchrun import torchrun
from plimsoll.service.stacks.megatron_deepspeed.launch import DEEPSPEED, MEGATRON_DEEPSPEED, SCRIPT
from plimsoll.service.stacks.stack import Stack

STACK = Stack(name="megatron-deepspeed", targets=(torchrun(SCRIPT), DEEPSPEED, MEGATRON_DEEPSPEED, dlrover(SCRIPT)))

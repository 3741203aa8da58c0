"""Megatron-DeepSpeed: its launch files."""

from __future__ import annotations

from plimsoll.service.stacks.megatron_deepspeed.launch import DEEPSPEED, MEGATRON_DEEPSPEED, SCRIPT
from plimsoll.service.stacks.stack import Stack

STACK = Stack(name="megatron-deepspeed", files=(DEEPSPEED, MEGATRON_DEEPSPEED), script=SCRIPT)

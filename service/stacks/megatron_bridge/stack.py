"""Megatron-Bridge: its launch file."""

from __future__ import annotations

from plimsoll.service.stacks.megatron_bridge.launch import MEGATRON_BRIDGE, SCRIPT
from plimsoll.service.stacks.stack import Stack

STACK = Stack(name="megatron-bridge", files=(MEGATRON_BRIDGE,), script=SCRIPT)

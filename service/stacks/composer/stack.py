"""Composer with llm-foundry: its launch files."""

from __future__ import annotations

from plimsoll.service.stacks.composer.launch import COMPOSER
from plimsoll.service.stacks.stack import Stack

STACK = Stack(name="composer", files=(COMPOSER,))

"""The training stacks that have a folder here, found by listing them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from plimsoll.service.worker.jobs.stack import Stack


@cache
def stacks() -> Mapping[str, Stack]:
    """Return every stack that has a folder here, by name."""
    folders = (module for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.ispkg)
    found = (importlib.import_module(f"{__package__}.{folder.name}.stack").STACK for folder in folders)
    return {stack.name: stack for stack in found}


def find_stack(framework: str, kernels: str | None = None) -> Stack:
    """Return a stack with the kernels that a job names; of one that has no folder only that it is not traced."""
    stack = stacks().get(framework, Stack(name=framework, untraced=""))
    return replace(stack, has_liger_kernels=True) if kernels == "fused" and stack.takes_liger_kernels else stack


def traced_stacks(which: Callable[[Stack], bool] = lambda stack: True) -> list[Stack]:  # noqa: ARG005
    """Return the stacks that are traced, in order of their names: all, or those of which `which` holds."""
    return [stacks()[name] for name in sorted(stacks()) if stacks()[name].untraced is None and which(stacks()[name])]

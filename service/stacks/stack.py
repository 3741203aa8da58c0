"""What the service knows of one training stack; each folder here has one, as STACK in its module `stack`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeAlias

from plimsoll.service.launch.dlrover import dlrover
from plimsoll.service.launch.script import Script
from plimsoll.service.launch.torchrun import torchrun
from plimsoll.service.launch.training import Target
from plimsoll.service.workloads.commands.flags import Flag
from plimsoll.service.workloads.commands.launched_ranks import Ranks
from plimsoll.service.workloads.commands.launches import Read
from plimsoll.service.workloads.objects.pods import Container

Words: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command that a launcher starts on `gpus` GPUs in a container; `ranks` where it says how many processes."""

    words: Words
    gpus: int
    container: Container
    ranks: Ranks | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReader:
    """Reads the commands that `reads` finds a stack's arguments in.

    One whose arguments scripts of other stacks take as well is `asked_last`.
    """

    reads: Callable[[Words], bool]
    read: Callable[[Job], Read]
    asked_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A stack by the name that plans call it.

    `files` are the launch files of its own, in their order, `script` is what the common launchers start of it, and
    `other_programs` are told its layouts besides. `launchers` are programs of its own that start processes, by the
    options that number them.
    """

    name: str
    files: tuple[Target, ...] = ()
    script: Script = field(default_factory=Script)
    other_programs: tuple[Target, ...] = ()
    launchers: Mapping[str, tuple[Flag, ...]] = field(default_factory=dict)
    reader: CommandReader | None = None

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return the launch files of its plans, in their order."""
        return (torchrun(self.script), *self.files, dlrover(self.script), *self.other_programs)


@cache
def stacks() -> Mapping[str, Stack]:
    """Return every stack that has a folder here, by name."""
    folders = (module for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.ispkg)
    found = (importlib.import_module(f"{__package__}.{folder.name}.stack").STACK for folder in folders)
    return {stack.name: stack for stack in found}


def find_stack(framework: str) -> Stack:
    """Return a stack; one without a folder here has the common launchers' files alone."""
    return stacks().get(framework, Stack(name=framework))

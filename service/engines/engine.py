"""What the service knows of one serving engine; each engine's folder here has one, as ENGINE in its module `engine`."""

from __future__ import annotations

import importlib.util
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from plimsoll.planners.serving.answer import ServingPlan
from plimsoll.service.engines.commands import CommandReader
from plimsoll.service.launch.checkpoint import Checkpoint
from plimsoll.service.launch.serving import Server
from plimsoll.service.workloads.commands.flags import Flag
from plimsoll.service.workloads.commands.launches import Read
from plimsoll.service.workloads.commands.shell import programs
from plimsoll.service.workloads.commands.shell_statements import Program
from plimsoll.service.workloads.objects.pods import Container, PodGroup

ObjectReader: TypeAlias = Callable[[Mapping[str, Any]], tuple[PodGroup, ...]]


def _starts_nothing(_image: str) -> tuple[str, ...]:
    return ()


def _none_on_loading(_version: str) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine by the name that plans call it.

    `server` is the program that serves its plans, and `arguments` what they are besides a
    command's. `read` reads the server's commands, whose options stand in `flags`; `entrypoint` has the words that an
    image is known to start where nobody says any, `launchers` the programs that stand before the server's, and
    `objects` are Kubernetes' kinds (by group and kind) that start nothing else. A person
    makes the changes of an advice by the options of the fields in `changes`; what is
    quantized `on_loading`, by a version, and formats of the cache have the engine's names.
    The rest is what the engine does before it serves: the `checked_rules` of planners that it refuses to start
    over, and what its command says to keep them (`ways`, and `whole_experts` where experts are not divided).
    """

    name: str
    server: Server
    read: CommandReader
    flags: tuple[Flag, ...]
    changes: Mapping[str, str]
    arguments: Callable[[Checkpoint, ServingPlan], Mapping[str, Any]] | None = None
    entrypoint: Callable[[str], tuple[str, ...]] = _starts_nothing
    launchers: tuple[str, ...] = ()
    objects: Mapping[tuple[str, str], ObjectReader] = field(default_factory=dict)
    on_loading: Callable[[str], Mapping[str, str]] = _none_on_loading
    cache_names: Mapping[str, str] = field(default_factory=dict)
    checked_rules: frozenset[str] = frozenset()
    ways: Mapping[str, str] = field(default_factory=dict)
    whole_experts: str = ""
    # It starts with less cache than one request of the longest may fill, and takes shorter ones.
    shortens_requests: bool = False
    # It wants its fraction of the whole card to be free when it starts.
    claims_fraction: bool = False
    # It refuses another scheme than the one that the checkpoint's config names.
    compares_schemes: bool = False
    # Ranks that are replicas of a dense model divide a mixture's experts among them.
    replicas_share_experts: bool = False
    # The first version that quantizes each weight as it is loaded, where older ones load all of them before.
    quantizes_by_weight_since: str = ""

    @property
    def first_file(self) -> str:
        """Return the launch file that every plan has unless something stands against it."""
        return self.server.artifact if self.arguments is None else self.name


@cache
def engines() -> Mapping[str, Engine]:
    """Return every engine that has a record in its folder here, by name."""
    folders = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.ispkg)
    # The folder of a server of another engine's plans has no record.
    names = (f"{__package__}.{folder}.engine" for folder in folders)
    found = (importlib.import_module(name).ENGINE for name in names if importlib.util.find_spec(name))
    return {engine.name: engine for engine in found}


def started_programs(container: Container) -> Iterator[Program]:
    """Yield each program that a container starts: by its command, or where it has none by what its image starts."""
    if not container.command:
        entered = (engine.entrypoint(container.image) for engine in engines().values())
        container = replace(container, command=next(filter(None, entered), ()))
    launchers = frozenset(launcher for engine in engines().values() for launcher in engine.launchers)
    return programs(container, launchers=launchers)


def serving_launch(words: tuple[str, ...], container: Container, *, gpus: int) -> Read | None:
    """Return what a command of a container with `gpus` GPUs would serve.

    NotRead where something of it cannot be read, CannotRun where the engine refuses its arguments, None where it
    serves nothing we know.
    """
    found = (engine.read(words, container, gpus) for engine in engines().values())
    return next((read for read in found if read is not None), None)

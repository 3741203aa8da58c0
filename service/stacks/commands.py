"""Launch commands of training jobs, read as a request to `/plan/train` by the stack whose arguments they have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from plimsoll.service.stacks.stack import CommandReader, Job, Words, stacks
from plimsoll.service.workloads.commands.flags import Flag
from plimsoll.service.workloads.commands.launched_ranks import TORCHRUN, launched_ranks, mpi_ranks, too_many_processes
from plimsoll.service.workloads.commands.launches import CannotRun, Launch, NotRead, Read
from plimsoll.service.workloads.objects.pods import Container

PYTHON = re.compile(r"^python[0-9.]*$")


def training_launch(
    words: Words,
    gpus: int,
    container: Container,
    *,
    gpus_per_pod: int | None = None,
    mpi_processes: int | None = None,
) -> Read | None:
    """Return what a command would train on `gpus` GPUs of all pods, or None where it trains nothing we know.

    All of them are one pod's where nothing else is said. `mpi_processes` are those that an MPI launcher starts of it.

    NotRead says what is missing, CannotRun why its program does not start.
    """
    program = words[0].rpartition("/")[2]
    is_python = bool(PYTHON.match(program))
    if not is_python and program not in (TORCHRUN, *launchers()):
        return None
    of_pod = gpus if gpus_per_pod is None else gpus_per_pod
    ranks = launched_ranks(words, container.env, of_pod, launchers())
    ranks = ranks or mpi_ranks(mpi_processes, gpus // max(of_pod, 1))
    job = Job(words=words, gpus=gpus if ranks is None else ranks.all, container=container, ranks=ranks)
    reader = next((reader for reader in _readers() if reader.reads(words)), None)
    if reader is None:
        unread = NotRead(reason=f"{words[0][:60]} starts a script whose arguments name no model")
        return None if is_python else unread
    found = reader.read(job)
    if not isinstance(found, Launch) or ranks is None:
        return found
    crowded = too_many_processes(ranks, of_pod)
    if crowded is not None:
        return CannotRun(program=found.program, reason=crowded)
    idle = f"it starts {ranks.each} processes on each node, and {of_pod - ranks.each} GPUs of a pod stay idle"
    notes = (*found.notes, idle) if ranks.each < of_pod else found.notes
    return replace(found, notes=notes, spans_pods=ranks.all > gpus, nodes=ranks.nodes)


@cache
def launchers() -> Mapping[str, tuple[Flag, ...]]:
    """Return the options of stacks' own launchers that number processes, by program."""
    return {program: flags for stack in stacks().values() for program, flags in stack.launchers.items()}


@cache
def _readers() -> tuple[CommandReader, ...]:
    readers = (stack.reader for stack in stacks().values() if stack.reader is not None)
    return tuple(sorted(readers, key=lambda reader: reader.asked_last))

"""The programs that a container starts, out of its command, its arguments and the shell text in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TypeVar

from plimsoll.service.workloads.commands.option_files import file_text
from plimsoll.service.workloads.commands.shell_variables import ASSIGNMENT, Variables
from plimsoll.service.workloads.commands.shell_words import commands
from plimsoll.service.workloads.objects.pods import Container

SHELLS = ("sh", "bash", "dash", "ash", "zsh")
# Words that stand before a program and start it unchanged; those with options of their own name how many words to skip.
PREFIXES = (
    "exec", "nohup", "time", "sudo", "env", "command", "setsid", "stdbuf", "numactl", "tini", "dumb-init",
    "nvidia_entrypoint.sh", "trtllm-llmapi-launch", "--",
)  # fmt: skip
# Those that take a word of their own after their options: how long a program may run, or where.
PREFIXES_WITH_A_WORD = ("timeout", "taskset", "chrt")
OPTIONS_WITH_A_VALUE = frozenset({"-k", "-s"})
# An MPI launcher starts the program after its options; by how many words an option takes with it.
MPI_LAUNCHERS = ("mpirun", "mpiexec", "mpirun.mpich", "mpiexec.hydra", "horovodrun")
MPI_OPTION_WORDS: Mapping[str, int] = {
    "n": 1, "np": 1, "N": 1, "npernode": 1, "ppn": 1, "x": 1, "H": 1, "host": 1, "hosts": 1, "hostfile": 1, "f": 1,
    "machinefile": 1, "bind-to": 1, "map-by": 1, "rank-by": 1, "wdir": 1, "genv": 2, "mca": 2,
}  # fmt: skip
MPI_NUMBERS = ("n", "np", "c")
# Of two words.
RUNNERS = frozenset({("uv", "run"), ("poetry", "run"), ("pixi", "run")})
# Kubernetes expands $(NAME) in command and args, whatever program they are for.
KUBERNETES_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
# What an image starts where the object names no command, by the image's name without registry and tag.
ENTRYPOINTS: Mapping[str, tuple[str, ...]] = {
    "vllm/vllm-openai": ("vllm", "serve"),
    "vllm/vllm-openai-rocm": ("vllm", "serve"),
    # The production stack's build of vLLM's image (docker/Dockerfile of LMCache).
    "lmcache/vllm-openai": ("vllm", "serve"),
}
# Clouds publish the launcher's image under names of their own, which hold its name.
TGI_IMAGE, TGI_ENTRYPOINT = "text-generation-inference", ("text-generation-launcher",)
# The first line of a script that a shell runs.
SHELL_SCRIPT = re.compile(r"^#![^\n]*\b(?:sh|bash|dash|ash|zsh)\b")
MOST_NESTED_SCRIPTS = 10
Value = TypeVar("Value")
MOST_COMMANDS = 100
MOST_TEXT_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The words of one program; `is_conditional` where the shell text may leave it out.

    `is_background` where the shell goes on beside it. `mpi_processes` are those that an
    MPI launcher starts of it, None where none does or it is told no number.
    """

    words: tuple[str, ...]
    mpi_processes: int | None = None
    is_conditional: bool = False
    is_background: bool = False


def programs(container: Container) -> Iterator[Program]:
    """Yield each program that a container starts, in order.

    Shell text is split into its commands, `exec`, `env` and assignments in front
    are dropped, and variables are replaced where the container or the text itself
    writes their value; others stand as they are written. Scripts are opened that
    a ConfigMap holds. What cannot be split yields nothing.
    """
    words = [_kubernetes_expanded(word, container.env) for word in (*_entrypoint(container), *container.args)]
    found = _programs(words, Variables(dict(container.env)), container)
    for number, program in enumerate(found):
        if number >= MOST_COMMANDS:
            return
        if program.words:
            yield program


def _entrypoint(container: Container) -> tuple[str, ...]:
    if container.command:
        return container.command
    if TGI_IMAGE in image_name(container.image):
        return TGI_ENTRYPOINT
    return known_image(container.image, ENTRYPOINTS) or ()


def known_image(image: str, table: Mapping[str, Value]) -> Value | None:
    """Return what a table says of an image by its name, which a mirror puts folders of its own in front of."""
    parts = image_name(image).split("/")
    names = ("/".join(parts[place:]) for place in range(len(parts) - 1))
    return next((table[name] for name in names if name in table), None)


def image_name(image: str) -> str:
    """Return an image's name without its registry, tag and digest."""
    name = image.partition("@")[0]
    head, _, last = name.rpartition("/")
    parts = [*(head.split("/") if head else []), last.partition(":")[0]]
    # A first part with a dot or a port is a registry.
    return "/".join(parts[1:] if len(parts) > 1 and re.search(r"[.:]|^localhost$", parts[0]) else parts)


def _programs(
    words: Sequence[str],
    variables: Variables,
    container: Container,
    *,
    is_conditional: bool = False,
    is_background: bool = False,
    depth: int = 0,
) -> Iterator[Program]:
    program = _without_prefixes(list(words), variables, is_conditional=is_conditional)
    script = _script(program, container) if program and depth < MOST_NESTED_SCRIPTS else None
    if script is None:
        yield Program(
            words=tuple(program),
            mpi_processes=_mpi_processes(words),
            is_conditional=is_conditional,
            is_background=is_background,
        )
        return
    variables = variables.inside(script.arguments)
    for command in commands(script.text[:MOST_TEXT_CHARACTERS]):
        may_be_left_out = is_conditional or command.is_conditional
        rest = variables.after_assignments(command.words, is_conditional=may_be_left_out)
        inner = [text for word in rest for text in variables.expanded(word)]
        yield from _programs(
            inner,
            variables,
            container,
            is_conditional=may_be_left_out,
            # Of a script that runs beside others, the commands still wait for each other.
            is_background=command.is_background,
            depth=depth + 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Script:
    """Shell text, and the arguments that it is started with, its name first."""

    text: str
    arguments: tuple[str, ...]


def _script(program: Sequence[str], container: Container) -> _Script | None:
    """Return the shell text that a program is, None where it is none or its file is not at hand."""
    if PurePosixPath(program[0]).name not in SHELLS:
        text = file_text(program[0], container)
        is_shell = text is not None and SHELL_SCRIPT.match(text)
        return _Script(text=text, arguments=tuple(program)) if text is not None and is_shell else None
    for number, word in enumerate(program[1:], start=1):
        rest = tuple(program[number:])
        if not word.startswith("-"):
            text = file_text(word, container)
            return None if text is None else _Script(text=text, arguments=rest)
        # `-c`, and `-lc` or `-ec`.
        if not word.startswith("--") and word.endswith("c"):
            return _Script(text=rest[1], arguments=rest[2:]) if rest[1:] else None
    return None


def _without_prefixes(words: list[str], variables: Variables, *, is_conditional: bool) -> list[str]:
    """Return the words from the program on; what is assigned in front, or exported, joins the variables."""
    is_prefixed = False
    while words:
        name = PurePosixPath(words[0]).name
        if ASSIGNMENT.match(words[0]):
            variables.assign(words[0], is_conditional=is_conditional)
        elif words[:2] == ["set", "--"]:
            variables.arguments = ("", *words[2:])
            return []
        elif name in PREFIXES:
            is_prefixed = True
        elif name in PREFIXES_WITH_A_WORD:
            words, is_prefixed = [words[0], *_after_first_word(words[1:])], True
        elif (name, *words[1:2]) in RUNNERS:
            words, is_prefixed = words[1:], True
        elif name in MPI_LAUNCHERS:
            words = words[:1] + _after_options(words[1:])
        elif not (is_prefixed and words[0].startswith("-")):
            return words
        words = words[1:]
    return words


def _after_first_word(words: list[str]) -> list[str]:
    """Return the words after the first that is no option, nor an option's value."""
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in OPTIONS_WITH_A_VALUE else words[1:]
    return words[1:]


def _after_options(words: list[str]) -> list[str]:
    """Return an MPI launcher's words from the program on."""
    while words and words[0].startswith("-"):
        taken = 0 if "=" in words[0] else MPI_OPTION_WORDS.get(words[0].lstrip("-"), 0)
        words = words[1 + taken :]
    return words


def _mpi_processes(words: Sequence[str]) -> int | None:
    """Return how many processes an MPI launcher in front of the program starts."""
    place = next((number for number, word in enumerate(words) if PurePosixPath(word).name in MPI_LAUNCHERS), None)
    if place is None:
        return None
    options = words[place + 1 : len(words) - len(_after_options(list(words[place + 1 :])))]
    numbers = (after for word, after in pairwise(options) if word.lstrip("-") in MPI_NUMBERS)
    return next((int(number) for number in numbers if number.isdecimal()), None)


def _kubernetes_expanded(word: str, env: Mapping[str, str]) -> str:
    return KUBERNETES_VARIABLE.sub(lambda match: env.get(match[1], match[0]), word)

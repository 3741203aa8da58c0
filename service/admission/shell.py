"""The programs that a container starts, out of its command, its arguments and the shell text in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from service.admission.option_files import file_text
from service.admission.workloads import Container

SHELLS = ("sh", "bash", "dash", "ash", "zsh")
# Words that stand before a program and start it unchanged; those with options of their own name how many words to skip.
PREFIXES = ("exec", "nohup", "time", "sudo", "env", "command", "setsid", "stdbuf", "numactl", "tini", "dumb-init", "--")
# An MPI launcher starts the program after its options; by how many words an option takes with it.
MPI_LAUNCHERS = ("mpirun", "mpiexec", "mpirun.mpich", "mpiexec.hydra", "horovodrun")
MPI_OPTION_WORDS: Mapping[str, int] = {
    "n": 1, "np": 1, "N": 1, "npernode": 1, "ppn": 1, "x": 1, "H": 1, "host": 1, "hosts": 1, "hostfile": 1, "f": 1,
    "machinefile": 1, "bind-to": 1, "map-by": 1, "rank-by": 1, "wdir": 1, "genv": 2, "mca": 2,
}  # fmt: skip
ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
SEPARATORS = frozenset({";", "&&", "||", "|", "&", "\n", "(", ")", "{", "}", "then", "do", "else"})
# Kubernetes expands $(NAME) in command and args; a shell expands $NAME and ${NAME}, with ${NAME:-default}.
KUBERNETES_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
SHELL_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}]*))?\}|([A-Za-z_][A-Za-z0-9_]*))")
# What an image starts where the object names no command, by the image's name without registry and tag.
ENTRYPOINTS: Mapping[str, tuple[str, ...]] = {
    "vllm/vllm-openai": ("vllm", "serve"),
    "vllm/vllm-openai-rocm": ("vllm", "serve"),
}
# Clouds publish the launcher's image under names of their own, which hold its name.
TGI_IMAGE, TGI_ENTRYPOINT = "text-generation-inference", ("text-generation-launcher",)
# The first line of a script that a shell runs.
SHELL_SCRIPT = re.compile(r"^#![^\n]*\b(?:sh|bash|dash|ash|zsh)\b")
MOST_NESTED_SCRIPTS = 10
MOST_COMMANDS = 100
MOST_TEXT_CHARACTERS = 100_000


def programs(container: Container) -> Iterator[tuple[str, ...]]:
    """Yield the words of each program that a container starts, in order.

    Shell text is split into its commands, `exec`, `env` and assignments in front
    are dropped, and variables are replaced where the container writes their value.
    Scripts are opened that a ConfigMap holds. What cannot be split yields nothing.
    """
    words = [_kubernetes_expanded(word, container.env) for word in (*_entrypoint(container), *container.args)]
    for number, program in enumerate(_commands(words, dict(container.env), container)):
        if number >= MOST_COMMANDS:
            return
        if program:
            yield tuple(program)


def _entrypoint(container: Container) -> tuple[str, ...]:
    if container.command:
        return container.command
    name = image_name(container.image)
    return TGI_ENTRYPOINT if TGI_IMAGE in name else ENTRYPOINTS.get(name, ())


def image_name(image: str) -> str:
    """Return an image's name without its registry, tag and digest."""
    name = image.partition("@")[0]
    head, _, last = name.rpartition("/")
    parts = [*(head.split("/") if head else []), last.partition(":")[0]]
    # A first part with a dot or a port is a registry.
    return "/".join(parts[1:] if len(parts) > 1 and re.search(r"[.:]|^localhost$", parts[0]) else parts)


def _commands(words: Sequence[str], env: dict[str, str], container: Container, depth: int = 0) -> Iterator[list[str]]:
    program = _without_prefixes(list(words), env)
    text = _script(program, container) if program and depth < MOST_NESTED_SCRIPTS else None
    if text is None:
        yield program
        return
    for command in _split(text):
        yield from _commands([_shell_expanded(word, env) for word in command], env, container, depth + 1)


def _script(program: Sequence[str], container: Container) -> str | None:
    """Return the shell text that a program is, None where it is none or its file is not at hand."""
    if PurePosixPath(program[0]).name in SHELLS:
        text = _shell_text(program[1:])
        file = next((word for word in program[1:] if not word.startswith("-")), None)
        if text is None and file is not None:
            text = file_text(file, container)
        return None if text is None else text[:MOST_TEXT_CHARACTERS]
    text = file_text(program[0], container)
    return text[:MOST_TEXT_CHARACTERS] if text is not None and SHELL_SCRIPT.match(text) else None


def _shell_text(words: Sequence[str]) -> str | None:
    """Return the text after `-c` (also `-lc`, `-ec`), None where a shell runs a file."""
    for number, word in enumerate(words):
        if word.startswith("-") and not word.startswith("--") and word.endswith("c"):
            following = words[number + 1 : number + 2]
            return following[0] if following else None
        if not word.startswith("-"):
            return None
    return None


def _split(text: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = "#"
    command: list[str] = []
    try:
        for word in lexer:
            if word in SEPARATORS or set(word) <= set(";&|\n()"):
                yield command
                command = []
            else:
                command.append(word)
    except ValueError:
        # An unclosed quote: what came before it is whole, the rest is not.
        return
    yield command


def _without_prefixes(words: list[str], env: dict[str, str]) -> list[str]:
    """Return the words from the program on; assignments in front, and exported ones, join the environment."""
    is_prefixed = False
    while words:
        if ASSIGNMENT.match(words[0]):
            name, _, value = words[0].partition("=")
            env[name] = value
        elif words[0] == "export":
            env.update(dict(word.split("=", 1) for word in words[1:] if ASSIGNMENT.match(word)))
            return []
        elif PurePosixPath(words[0]).name in PREFIXES:
            is_prefixed = True
        elif PurePosixPath(words[0]).name in MPI_LAUNCHERS:
            words = words[:1] + _after_options(words[1:])
        elif not (is_prefixed and words[0].startswith("-")):
            return words
        words = words[1:]
    return words


def _after_options(words: list[str]) -> list[str]:
    """Return an MPI launcher's words from the program on."""
    while words and words[0].startswith("-"):
        taken = 0 if "=" in words[0] else MPI_OPTION_WORDS.get(words[0].lstrip("-"), 0)
        words = words[1 + taken :]
    return words


def _kubernetes_expanded(word: str, env: Mapping[str, str]) -> str:
    return KUBERNETES_VARIABLE.sub(lambda match: env.get(match[1], match[0]), word)


def _shell_expanded(word: str, env: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return env.get(name) or match[2] or match[0]

    return SHELL_VARIABLE.sub(value, word)

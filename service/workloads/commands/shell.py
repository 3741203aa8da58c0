"""The programs that a container starts, out of its command, its arguments and the shell text in them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import PurePosixPath
from typing import Literal

from plimsoll.service.workloads.commands.launch_prefixes import mpi_processes, without_prefixes
from plimsoll.service.workloads.commands.option_files import file_text
from plimsoll.service.workloads.commands.shell_statements import Flow, Function, Program, Statements, System
from plimsoll.service.workloads.commands.shell_syntax import parsed
from plimsoll.service.workloads.commands.shell_variables import Variables, unsealed
from plimsoll.service.workloads.objects.pods import Container

SHELLS = ("sh", "bash", "dash", "ash", "zsh")
# `-euo pipefail`: the option takes a word.
SET_OPTION = re.compile(r"-[a-z]*o")
# The first line of a script that a shell runs.
SHELL_SCRIPT = re.compile(r"^#![^\n]*\b(?:sh|bash|dash|ash|zsh)\b")
# Kubernetes expands $(NAME) in command and args, whatever program they are for.
KUBERNETES_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
# Builtins that give variables values which nobody knows: each word of theirs may be a name.
ASSIGNING = frozenset({"read", "mapfile", "readarray", "getopts", "let"})
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
MOST_COMMANDS = 100
CHARACTERS_OF_A_NODE = 10


def programs(container: Container, *, launchers: Collection[str] = ()) -> Iterator[Program]:
    """Yield each program that a container starts, in order; `launchers` start the program behind them unchanged.

    Shell text is read as bash reads it, what stands before programs (`exec`, `env`) is dropped, and variables are
    replaced where the container or the text itself writes their value; others stand as they are written. Scripts are
    opened that a ConfigMap holds or the text wrote. What cannot be read ends its text.
    """
    words = [_kubernetes_expanded(word, container.env) for word in (*container.command, *container.args)]
    shell = Shell(variables=Variables(container.env), system=System(container=container, launchers=launchers))
    yield from islice(shell.run(words, Flow()), MOST_COMMANDS)


def _kubernetes_expanded(word: str, env: Mapping[str, str]) -> str:
    return KUBERNETES_VARIABLE.sub(lambda match: env.get(match[1], match[0]), word)


@dataclass(slots=True, kw_only=True)
class Shell:
    """One shell process. It ends by `exit`, a function or a sourced text by `return`."""

    variables: Variables
    system: System
    functions: dict[str, Function] = field(default_factory=dict)
    ended: Literal["", "return", "exit"] = ""

    def copied(self) -> Shell:
        """Return this shell in a part that may be left out."""
        return replace(self, variables=self.variables.copied())

    def subshell(self) -> Shell:
        """Return a process of its own, which changes nothing of this one."""
        return replace(self.copied(), functions=dict(self.functions))

    def run(self, words: Sequence[str], flow: Flow, env: Mapping[str, str] | None = None) -> Iterator[Program]:
        """Yield what a command starts: a program, or what a function, a script or a text does in its place."""
        program, assigned = without_prefixes(words, self.system.launchers)
        if not program:
            return
        if program[0] in self.functions:
            yield from self._with(env or {}, self._call(program, flow))
        elif program[0] in ("eval", "source", "."):
            yield from self._with(env or {}, self._read(self._text_read_here(program), flow))
        elif (script := _script(program, self.system.container)) is not None:
            inner = self.variables.of_script(script.arguments, {**(env or {}), **assigned})
            yield from Shell(variables=inner, system=self.system)._read(script.text, flow)
        else:
            self._change(program)
            yield Program(
                words=tuple(unsealed(word) for word in program),
                container=self.system.container,
                mpi_processes=mpi_processes(words),
                is_conditional=flow.is_conditional,
                is_background=flow.is_background,
            )
        if words[0] == "exec":
            self.ended = "exit"

    def _read(self, text: str, flow: Flow) -> Iterator[Program]:
        """Yield what a text starts."""
        # What is read again and again counts, too.
        self.system.nodes_left -= len(text) // CHARACTERS_OF_A_NODE
        read = parsed(text) if self.system.nodes_left > 0 else None
        if read is None:
            self.system.give_up()
        else:
            yield from Statements(self, read).of(read.root, flow)
        self._return()

    def _with(self, env: Mapping[str, str], found: Iterator[Program]) -> Iterator[Program]:
        """Yield what is found while variables have the values that stand in front of a command of this shell."""
        for name, value in env.items():
            self.variables.assign(name, value)
        self.variables.export(env)
        yield from found
        self.variables.forget(env)

    def _call(self, words: Sequence[str], flow: Flow) -> Iterator[Program]:
        function, variables = self.functions[words[0]], self.variables
        before = variables.arguments, variables.local
        variables.arguments, variables.local = ("", *words[1:]), []
        flow = replace(flow, is_conditional=flow.is_conditional or function.is_conditional)
        yield from Statements(self, function.text).of(function.body, flow)
        variables.forget(variables.local)
        variables.arguments, variables.local = before
        self._return()

    def _return(self) -> None:
        if self.ended == "return":
            self.ended = ""

    def _text_read_here(self, program: Sequence[str]) -> str:
        """Return what `eval` is given, or the file that `source` reads if it is at hand."""
        if program[0] == "eval":
            return unsealed(" ".join(program[1:]))
        return (file_text(program[1], self.system.container) or "") if program[1:] else ""

    def _change(self, program: Sequence[str]) -> None:
        """Do what a builtin does to this shell."""
        name, words = program[0], list(program[1:])
        variables = self.variables
        if name in ("return", "exit"):
            self.ended = "return" if name == "return" else "exit"
        elif name == "set" and "--" in words:
            variables.arguments = ("", *words[words.index("--") + 1 :])
        elif name == "set" and words and words[0][0:1] not in ("-", "+"):
            variables.arguments = ("", *words)
        elif name == "shift":
            self._shift(words[0] if words else "1")
        elif name in ASSIGNING or (name == "printf" and "-v" in words):
            variables.forget(match[0] for word in words if (match := NAME.match(word)))

    def _shift(self, number: str) -> None:
        """Drop the first arguments; none where there are fewer."""
        known = self.variables.arguments if number.isdecimal() and self.variables.value("#") is not None else None
        if known is None:
            self.variables.arguments = None
        elif int(number) < len(known):
            self.variables.arguments = ("", *known[1 + int(number) :])


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
    for number, (before, word) in enumerate(pairwise(program), start=1):
        rest = tuple(program[number:])
        if SET_OPTION.fullmatch(before):
            continue
        if not word.startswith("-"):
            text = file_text(word, container)
            return None if text is None else _Script(text=text, arguments=rest)
        # `-c`, and `-lc` or `-ec`.
        if not word.startswith("--") and word.endswith("c"):
            return _Script(text=unsealed(rest[1]), arguments=rest[2:] or ("",)) if rest[1:] else None
    return None

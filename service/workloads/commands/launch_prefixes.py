"""Words that stand before a program and start it: wrappers, runners and MPI launchers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath

# Words that stand before a program and start it unchanged; those with options of their own name how many words to skip.
PREFIXES = (
    "exec", "nohup", "time", "sudo", "env", "command", "setsid", "stdbuf", "numactl", "tini", "dumb-init",
    "nvidia_entrypoint.sh", "--",
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
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def without_prefixes(words: Sequence[str], launchers: Collection[str] = ()) -> tuple[list[str], dict[str, str]]:
    """Return the words from the program on, and the variables that it is started with."""
    rest, assigned = list(words), dict[str, str]()
    is_prefixed = False
    while rest:
        name = PurePosixPath(rest[0]).name
        assignment = ASSIGNMENT.fullmatch(rest[0])
        if is_prefixed and assignment is not None:
            assigned[assignment[1]] = assignment[2]
        elif name in PREFIXES or name in launchers:
            is_prefixed = True
        elif name in PREFIXES_WITH_A_WORD:
            rest, is_prefixed = [rest[0], *_after_first_word(rest[1:])], True
        elif (name, *rest[1:2]) in RUNNERS:
            rest, is_prefixed = rest[1:], True
        elif name in MPI_LAUNCHERS:
            rest = rest[:1] + _after_options(rest[1:])
        elif not (is_prefixed and rest[0].startswith("-")):
            break
        rest = rest[1:]
    return rest, assigned


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


def mpi_processes(words: Sequence[str]) -> int | None:
    """Return how many processes an MPI launcher in front of the program starts."""
    place = next((number for number, word in enumerate(words) if PurePosixPath(word).name in MPI_LAUNCHERS), None)
    if place is None:
        return None
    options = words[place + 1 : len(words) - len(_after_options(list(words[place + 1 :])))]
    numbers = (after for word, after in pairwise(options) if word.lstrip("-") in MPI_NUMBERS)
    return next((int(number) for number in numbers if number.isdecimal()), None)

"""What each of several ranks printed, and of that the lines that say why they did not come to an end."""

from __future__ import annotations

from pathlib import Path

from plimsoll.service.worker.processes.child_main import LOG_LINES

# As faulthandler begins a stack, whose first lines say where the rank stood.
STACK_HEADING = "(most recent call first):"


def log_file(folder: Path, rank: int) -> Path:
    """Return where a rank's output goes."""
    return folder / f"rank{rank}.log"


def last_words(folder: Path, ranks: int) -> str:
    """Return the last lines of every rank's log, as many as a job's log has room for."""
    return "\n".join(line for rank in range(ranks) for line in _lines_of(folder, rank, LOG_LINES // ranks))


def _lines_of(folder: Path, rank: int, most_lines: int) -> list[str]:
    """Return a rank's last lines; of one asked where it stood, those before its stack and the stack's first."""
    room = most_lines - 1
    text = log_file(folder, rank).read_text(errors="replace")
    said, heading, stack = text.rpartition(STACK_HEADING)
    stood = stack.split("\n")[1 : 1 + room // 2] if heading else []
    told = (said if heading else text).splitlines()
    return [f"Rank {rank}:", *(f"  {line}" for line in (*told[len(stood) - room :], *stood))]

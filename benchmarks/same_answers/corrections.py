"""Named corrections: differences that are meant, each with its reason."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.same_answers.comparing import Difference

CORRECTIONS = Path(__file__).parent / "corrections.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Differences of some questions, of some places in an answer and below them, or of both; one of them is named."""

    reason: str
    questions: tuple[int, ...] = ()
    pointers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a correction without a reason, and one that would let everything differ."""
        if not self.reason.strip() or not (self.questions or self.pointers):
            raise ValueError("A correction names its reason, and questions or pointers.")

    def covers(self, number: int, difference: Difference) -> bool:
        """Return whether this is why a question's answer differs in a place."""
        is_asked = not self.questions or number in self.questions
        is_there = not self.pointers or any(_is_under(difference.pointer, pointer) for pointer in self.pointers)
        return is_asked and is_there


def read_corrections(file: Path = CORRECTIONS) -> tuple[Correction, ...]:
    """Return the corrections of a file; none where there is no such file."""
    if not file.exists():
        return ()
    listed: Sequence[dict[str, object]] = tomllib.loads(file.read_text(encoding="utf-8")).get("correction", [])
    return tuple(Correction(**{name: _tuple(value) for name, value in each.items()}) for each in listed)  # type: ignore[arg-type]


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _is_under(pointer: str, above: str) -> bool:
    return pointer == above or pointer.startswith((f"{above}/", f"{above} "))

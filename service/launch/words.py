"""Commands as lists of words, and as a shell reads them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def shell_text(words: Sequence[str]) -> str:
    """Return the words as a person types them; a variable of the shell stands bare, so that it is replaced."""
    return " ".join(word if word.startswith("$") else shlex.quote(word) for word in words)


def pairs(*options: tuple[str, str | int | float]) -> list[str]:
    """Return each option and its value as two words."""
    return [word for option, value in options for word in (option, str(value))]


def above_one(*degrees: tuple[str, int]) -> list[str]:
    """Return the options of those degrees that divide anything."""
    return pairs(*((option, degree) for option, degree in degrees if degree > 1))

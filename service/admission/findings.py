"""What is said of one command or plan: its weight, its words, and what it takes of a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one engine takes of one GPU: its weights, and the fraction of the card that it makes its own."""

    program: str
    engine: str
    fraction: float
    weight_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`refuse` where even the low end of the error bar does not fit, `warn` where only the high end does not.

    `unjudged` where something is missing, and the text says what.
    """

    weight: Literal["refuse", "warn", "fits", "unjudged"]
    text: str
    share: Share | None = None


def softened(finding: Finding, reason: str) -> Finding:
    """Return a refusal as a warning that says why it is none; any other finding as it is."""
    return replace(finding, weight="warn", text=f"{finding.text} {reason}") if finding.weight == "refuse" else finding


def noted(finding: Finding, note: str) -> Finding:
    """Return a finding of something that does not fit with a sentence more; any other as it is."""
    return replace(finding, text=f"{finding.text} {note}") if finding.weight in ("refuse", "warn") else finding


class NotJudged(Exception):
    """Something is missing; the text says what."""

"""The accuracy on record as clients read it."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.service.persistence.records import AccuracyGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyPoint:
    """One prediction that was measured: the first quantity that the record has of both."""

    level: str
    framework: str
    gpu: str
    model: str
    quantity: str
    predicted: float
    measured: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How far predictions were off, by level, framework, family and GPU; errors are predicted/measured − 1.

    `points` are the newest ones by themselves, where a key asks those of its own plans.
    """

    measurements: int
    items: tuple[AccuracyGroup, ...]
    points: tuple[AccuracyPoint, ...]

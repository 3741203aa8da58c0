"""What a launch command says, as a planning request, and what of it could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A request without its hardware, which the pods say; `notes` are for people."""

    program: str
    kind: Literal["train", "infer"]
    request: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRead:
    """A command that is ours to judge and says too little, or something unknown."""

    reason: str

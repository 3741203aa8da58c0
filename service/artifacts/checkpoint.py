"""The checkpoint that a deployment serves: by which name it is found, and in which format it lies there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A repository's name on the hub, and the format of its matrices where it is quantized."""

    name: str
    stored_weights: str | None = None

    def is_stored_as(self, weights: str) -> bool:
        """Return whether its files hold that format already, so that no option asks for it."""
        return self.stored_weights == weights

    def can_become(self, weights: str) -> bool:
        """Return whether a program may load it as that: a quantized checkpoint stays what it is."""
        return self.stored_weights in (None, weights)

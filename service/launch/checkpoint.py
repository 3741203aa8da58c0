"""The checkpoint that a deployment serves: by which name it is found, and in which format it lies there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.families import traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A repository's name on the hub, and the format of its matrices where it is quantized.

    `rope_theta` is the base of its rotary positions, None where nobody read it, and
    `model_type` that of its config, where it is known.
    """

    name: str
    stored_weights: str | None = None
    rope_theta: float | None = None
    model_type: str | None = None

    @property
    def needs_own_code(self) -> bool:
        """Return whether it is read by code from its own repository, which a program runs only where it is told to."""
        return traits(self.model_type).needs_remote_code

    def is_stored_as(self, weights: str) -> bool:
        """Return whether its files hold that format already, so that no option asks for it."""
        return self.stored_weights == weights


def stated_rope_theta(config: Mapping[str, Any]) -> float | None:
    """Return the base of the rotary positions' wavelengths that a config states, None where it states none."""
    text = config.get("text_config")
    for part in (config, *([text] if isinstance(text, Mapping) else [])):
        scaled = part.get("rope_parameters")
        theta = part.get("rope_theta") or (scaled.get("rope_theta") if isinstance(scaled, Mapping) else None)
        if isinstance(theta, int | float):
            return float(theta)
    return None

"""Facts of a model that only running it needs, read from its config.

The catalogue keeps what decides memory and time. What it has left away of a
model's config is not known here, and stands in launch files as a shell variable
that the reader sets, so that no program starts on a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.service.launch.training import Placeholder, TrainingLaunch

# What transformers takes where a config leaves a key away (configuration_llama.py and its kin).
ROPE_THETA = 10_000.0
NORM_EPSILON = 1e-6


def rope_theta(launch: TrainingLaunch) -> float | Placeholder:
    """Return the base of the rotary positions' wavelengths."""
    config = launch.model_config
    theta = _rope(config).get("rope_theta") or config.get("rope_theta")
    if theta is None:
        return Placeholder("$ROPE_THETA") if launch.model_name is not None else ROPE_THETA
    return float(theta)


def norm_epsilon(launch: TrainingLaunch) -> float | Placeholder:
    """Return what root-mean-square norms add to the mean."""
    epsilon = launch.model_config.get("rms_norm_eps")
    if epsilon is None:
        return Placeholder("$NORM_EPSILON") if launch.model_name is not None else NORM_EPSILON
    return float(epsilon)


def rope_kind(config: Mapping[str, Any]) -> str:
    """Return how rotary positions are scaled, by transformers' names: `default` is not at all."""
    rope = _rope(config)
    return str(rope.get("rope_type") or rope.get("type") or "default")


def rope_factor(config: Mapping[str, Any]) -> float | None:
    """Return by how much rotary positions are stretched, or None where they are not."""
    factor = _rope(config).get("factor")
    return None if factor is None else float(factor)


def slides(config: Mapping[str, Any]) -> bool:
    """Return whether any layer looks back a window only; Qwen's configs name one and switch it off."""
    return config.get("sliding_window") is not None and bool(config.get("use_sliding_window", True))


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how rotary positions are made; transformers 5 calls it `rope_parameters`."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}

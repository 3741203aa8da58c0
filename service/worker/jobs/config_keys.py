"""By which names configs tell a decoder's sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEPTH_KEYS = ("num_hidden_layers", "n_layer")
HIDDEN_KEYS = ("hidden_size", "n_embd")


def depth_key(config: Mapping[str, Any]) -> str:
    """Return by which name a config tells its number of layers."""
    return next(key for key in DEPTH_KEYS if key in config)


def number_of_layers(config: Mapping[str, Any]) -> int:
    """Return a config's number of layers."""
    return int(config[depth_key(config)])


def hidden_size(config: Mapping[str, Any]) -> int:
    """Return the features of a config's residual stream."""
    return int(next(config[key] for key in HIDDEN_KEYS if key in config))

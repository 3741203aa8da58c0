"""By which names configs tell a decoder's sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The last is Nemotron-H's, a list of what each layer is.
DEPTH_KEYS = ("num_hidden_layers", "n_layer", "layers_block_type")
# Nemotron-H's kinds of layers, a letter each, and which layers of Bamba attend.
PATTERN = "hybrid_override_pattern"
ATTENTION_INDICES = "attn_layer_indices"
HIDDEN_KEYS = ("hidden_size", "n_embd")


def depth_key(config: Mapping[str, Any]) -> str:
    """Return by which name a config tells its number of layers."""
    return next(key for key in DEPTH_KEYS if key in config)


def number_of_layers(config: Mapping[str, Any]) -> int:
    """Return a config's number of layers."""
    depth = config[depth_key(config)]
    return len(depth) if isinstance(depth, list) else int(depth)


def of_layers(config: Mapping[str, Any], layers: range) -> dict[str, Any]:
    """Return a config of some of its layers, of lists, patterns and indices of them too."""
    whole = number_of_layers(config)
    some = {
        name: value[layers.start : layers.stop] if tells_each_layer(name, value, whole) else value
        for name, value in config.items()
    }
    if ATTENTION_INDICES in some:
        some[ATTENTION_INDICES] = [index - layers.start for index in some[ATTENTION_INDICES] or () if index in layers]
    key = depth_key(config)
    return some if isinstance(config[key], list) else some | {key: len(layers)}


def tells_each_layer(name: str, value: object, layers: int) -> bool:
    """Return whether a config's value is a list, or a pattern, of one for each of its layers."""
    return (isinstance(value, (list, tuple)) or name == PATTERN) and len(value) == layers  # type: ignore[arg-type]


def hidden_size(config: Mapping[str, Any]) -> int:
    """Return the features of a config's residual stream."""
    return int(next(config[key] for key in HIDDEN_KEYS if key in config))

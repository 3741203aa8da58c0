"""How far stretched positions reach: the context an engine takes from a config that states rope scaling.

Source: vllm/config/model.py, _get_and_verify_max_len.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The stated positions of longrope and llama3 are the stretched ones already.
STRETCHED = frozenset({"yarn", "linear", "dynamic", "deepseek_yarn"})
FROM_ORIGINAL = frozenset({"yarn", "deepseek_yarn"})
MOST_FACTOR = 4096.0


def stretched_positions(config: Mapping[str, Any], stated: int | None) -> int | None:
    """Return the longest context of a model that states `stated` positions, stretched where its config says so."""
    text = config.get("text_config")
    parts = [part for part in (config, text) if isinstance(part, Mapping)]
    scaling = next((found for part in parts for found in (_scaling(part),) if found is not None), None)
    if scaling is None or stated is None:
        return stated
    return stretched_by(scaling, stated)


def scales_positions(config: Mapping[str, Any]) -> bool:
    """Return whether a config asks for rotary positions that are scaled, in whatever way."""
    text = config.get("text_config")
    parts = [part for part in (config, text) if isinstance(part, Mapping)]
    found = [part.get(name) for part in parts for name in ("rope_scaling", "rope_parameters")]
    kinds = [each.get("rope_type", each.get("type")) for each in found if isinstance(each, Mapping)]
    return any(kind not in (None, "default") for kind in kinds)


def stretched_by(scaling: Mapping[str, Any], stated: int) -> int:
    """Return how far positions reach under one scaling, in the words of a config."""
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    if (
        not isinstance(kind, str)
        or kind not in STRETCHED
        or not isinstance(factor, int | float)
        or not 1 <= factor <= MOST_FACTOR
    ):
        return stated
    original = scaling.get("original_max_position_embeddings")
    positions = original if kind in FROM_ORIGINAL and isinstance(original, int) and original > 0 else stated
    return max(stated, int(positions * factor))


def _scaling(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for name in ("rope_scaling", "rope_parameters"):
        found = config.get(name)
        if isinstance(found, Mapping) and ("factor" in found):
            return found
    return None

"""From a Hugging Face `config.json` to a `ModelSpec`: each family, with its traits, is one file or folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.planners.families.registry import (
        ReadConfig,
        describe_config,
        described_parts,
        known_model_types,
        model_types_with,
        read_model,
        traits,
    )

__all__ = [
    "ReadConfig",
    "describe_config",
    "described_parts",
    "known_model_types",
    "model_types_with",
    "read_model",
    "traits",
]


def __getattr__(name: str) -> Any:
    """Return what the registry has, which loads the families when a config is first read, and not before.

    The catalogue, which names models and reads none, is thereby listed without them.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from plimsoll.planners.families import registry

    return getattr(registry, name)

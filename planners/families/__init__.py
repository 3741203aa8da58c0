"""From a Hugging Face `config.json` to a `ModelSpec`, one small reader for each family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.planners.families.registry import (
        ReadConfig,
        describe_config,
        described_parts,
        known_model_types,
        read_model,
    )

__all__ = ["ReadConfig", "describe_config", "described_parts", "known_model_types", "read_model"]


def __getattr__(name: str) -> Any:
    """Return what the registry has: every family's reader is loaded when a config is first read, and not before.

    The catalogue, which names models and reads none, is thereby listed without them.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from plimsoll.planners.families import registry

    return getattr(registry, name)

"""Which step of the schema's history this version brings, without loading what applies it."""

from __future__ import annotations

from importlib.resources import files

VERSION_TABLE = "alembic_version"
"""Alembic keeps the last step that was applied in its one row."""


def latest_step() -> str:
    """Return the last step of `migrations/versions`, whose files begin with their numbers: "0005"."""
    names = (entry.name.partition("_")[0] for entry in (files("plimsoll.migrations") / "versions").iterdir())
    return max(name for name in names if name.isdecimal())

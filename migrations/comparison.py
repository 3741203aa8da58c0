"""What Alembic compares with our tables."""

from __future__ import annotations

from typing import Any


def is_ours(name: str | None, kind: str, _parents: Any) -> bool:
    """Return whether Alembic should look at something; the queue keeps its own tables."""
    return not (kind == "table" and name is not None and name.startswith("procrastinate_"))

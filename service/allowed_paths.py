"""Paths that clients name, and the folders they must lie in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from service.errors import PathNotAllowed


def allowed_path(path: str, roots: Sequence[Path], *, pointer: str) -> Path:
    """Return the real path, links followed; raises PathNotAllowed where it leaves every root.

    A relative path is looked for under each root in turn; one that is nowhere
    counts as lying under the first. The error says the same whether or not
    something exists outside, so that nobody can feel their way around the disk.
    """
    real_roots = [root.resolve() for root in roots]
    try:
        candidates = [(root / path).resolve() for root in real_roots]
    except (OSError, RuntimeError, ValueError) as error:
        raise _refusal(real_roots, pointer) from error
    inside = [found for found, root in zip(candidates, real_roots, strict=True) if found.is_relative_to(root)]
    if not inside:
        inside = [found for found in candidates if any(found.is_relative_to(root) for root in real_roots)]
    if not inside:
        raise _refusal(real_roots, pointer)
    return next((found for found in inside if found.exists()), inside[0])


def _refusal(roots: Sequence[Path], pointer: str) -> PathNotAllowed:
    if not roots:
        detail = "No model root is configured (PLIMSOLL_MODEL_ROOTS), so no path may be read."
    else:
        detail = f"The path lies outside the {len(roots)} allowed model root(s)."
    return PathNotAllowed(detail, pointer=pointer)

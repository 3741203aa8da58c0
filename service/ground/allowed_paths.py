"""Paths that clients name, and the folders they must lie in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from plimsoll.service.ground.errors import PathNotAllowed

Kind: TypeAlias = Literal["model", "output"]


def allowed_path(path: str, roots: Sequence[Path], *, pointer: str, kind: Kind = "model") -> Path:
    """Return the real path, links followed; raises PathNotAllowed where it leaves every root.

    A relative path is looked for under each root in turn; one that is nowhere
    counts as lying under the first. The error says the same whether or not
    something exists outside, so that nobody can feel their way around the disk;
    `kind` is what it calls the roots.
    """
    real_roots = [root.resolve() for root in roots]
    try:
        candidates = [(root / path).resolve() for root in real_roots]
    except (OSError, RuntimeError, ValueError) as error:
        raise _refusal(real_roots, pointer, kind) from error
    inside = [found for found, root in zip(candidates, real_roots, strict=True) if found.is_relative_to(root)]
    if not inside:
        inside = [found for found in candidates if any(found.is_relative_to(root) for root in real_roots)]
    if not inside:
        raise _refusal(real_roots, pointer, kind)
    try:
        return next((found for found in inside if found.exists()), inside[0])
    except OSError as error:
        # It lies inside, and no system can open it: a name is too long, or a folder may not be looked into.
        raise PathNotAllowed("The path cannot be opened.", pointer=pointer) from error


def _refusal(roots: Sequence[Path], pointer: str, kind: Kind) -> PathNotAllowed:
    if not roots:
        use = "read" if kind == "model" else "written to"
        detail = f"No {kind} root is configured (PLIMSOLL_{kind.upper()}_ROOTS), so no path may be {use}."
    else:
        detail = f"The path lies outside every allowed {kind} root (PLIMSOLL_{kind.upper()}_ROOTS)."
    return PathNotAllowed(detail, pointer=pointer)

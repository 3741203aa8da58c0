"""Which rows constants may be fitted to, and which are kept back to check them.

A row is held out where the first byte of the SHA-256 of its configuration is
below 77 (30 %). The configuration and not the row's name is hashed, so that a
run that was repeated, or read in two ways, stands on one side only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

HELD_OUT_BELOW = 77


def is_held_out(configuration: Iterable[object]) -> bool:
    """Return whether a row with this configuration is kept back."""
    text = "|".join(str(part) for part in configuration)
    return hashlib.sha256(text.encode()).digest()[0] < HELD_OUT_BELOW

"""One spelling for each value, so that equal questions have equal digests."""

from __future__ import annotations

import hashlib
import json
from typing import Any

# Made once: `json.dumps` makes one with every call.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
# 160 bits: no two plans meet by chance, and the id still fits a line.
DIGEST_CHARACTERS = 40


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces; raises ValueError for NaN and infinities."""
    return _ENCODER.encode(value)


def digest(value: Any) -> str:
    """Return the beginning of the SHA-256 of the value's canonical JSON, in hexadecimal."""
    return text_digest(canonical_json(value))


def text_digest(text: str) -> str:
    """Return the digest of a value whose canonical JSON is known."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]

"""One spelling for each value, so that equal questions have equal digests."""

from __future__ import annotations

import hashlib
import json
from typing import Any

# 160 bits: no two plans meet by chance, and the id still fits a line.
DIGEST_CHARACTERS = 40


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces; raises ValueError for NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """Return the beginning of the SHA-256 of the value's canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:DIGEST_CHARACTERS]

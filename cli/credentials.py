"""The key that commands show to a service."""

from __future__ import annotations

import os

KEY_VARIABLE = "PLIMSOLL_API_KEY"


def key_header() -> dict[str, str]:
    """Return the header that shows the key in PLIMSOLL_API_KEY; none where it is unset."""
    key = os.environ.get(KEY_VARIABLE, "")
    return {"authorization": f"Bearer {key}"} if key else {}

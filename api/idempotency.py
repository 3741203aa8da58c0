"""`Idempotency-Key`: the same POST sent twice queues one job."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Any text of your own. The same key with the same request answers with the first job.",
    ),
]

"""How long a page is, and where it begins."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from plimsoll.service.persistence.paging import LARGEST_PAGE

Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="How many to return at most.")]
Cursor = Annotated[
    str | None, Query(max_length=500, description="The `next_cursor` of the page before; absent for the newest.")
]

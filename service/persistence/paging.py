"""Pages by key: the next page begins after the last row, however many came before."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa

from plimsoll.service.ground.errors import InvalidCursor
from plimsoll.service.persistence.records import Page

Item = TypeVar("Item")

# Enough for any screen; a page is one answer and one query.
LARGEST_PAGE = 200


def page_size(limit: int) -> int:
    """Return `limit` kept between one and the largest page."""
    return max(1, min(limit, LARGEST_PAGE))


def newest_first(
    query: sa.Select[Any], created_at: sa.Column[Any], key: sa.Column[Any], *, limit: int, cursor: str | None
) -> sa.Select[Any]:
    """Return `query` in order, from the cursor on, with one row more than the page holds.

    The row too many tells `page_of` whether another page follows. `key` breaks ties
    between rows of the same moment, and must be unique.
    """
    if cursor is not None:
        moment, last_key = read_cursor(cursor)
        if key.type.python_type is not type(last_key):
            raise InvalidCursor
        last = sa.tuple_(sa.literal(moment, created_at.type), sa.literal(last_key, key.type))
        query = query.where(sa.tuple_(created_at, key) < last)
    return query.order_by(created_at.desc(), key.desc()).limit(page_size(limit) + 1)


def page_of(
    rows: Sequence[sa.Row[Any]],
    created_at: sa.Column[Any],
    key: sa.Column[Any],
    item: Callable[[sa.Row[Any]], Item],
    *,
    limit: int,
) -> Page[Item]:
    """Return the page of the rows that `newest_first` found by the same columns, each made an `item`."""
    held = rows[: page_size(limit)]
    items = tuple(item(row) for row in held)
    if len(rows) == len(held):
        return Page(items=items, next_cursor=None)
    last = held[-1]._mapping
    return Page(items=items, next_cursor=write_cursor(last[created_at.name], last[key.name]))


def write_cursor(created_at: datetime, key: str | int) -> str:
    """Return the cursor that begins after this row."""
    text = json.dumps([created_at.isoformat(), key], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> tuple[datetime, str | int]:
    """Return the moment and the key that a cursor holds; raises InvalidCursor."""
    try:
        text = base64.b64decode(cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        moment, key = json.loads(text)
        created_at = datetime.fromisoformat(moment)
    except (binascii.Error, ValueError, TypeError, RecursionError) as error:
        raise InvalidCursor from error
    if created_at.tzinfo is None or isinstance(key, bool) or not isinstance(key, str | int):
        raise InvalidCursor
    return created_at, key

from __future__ import annotations

import base64
import contextlib
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.service.ground.errors import InvalidCursor
from plimsoll.service.persistence.paging import LARGEST_PAGE, page_of, page_size, read_cursor, write_cursor
from plimsoll.service.persistence.tables import models_seen

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@given(
    moment=st.datetimes(timezones=st.just(UTC)),
    key=st.integers(min_value=-(2**63), max_value=2**63 - 1) | st.text(max_size=50),
)
def test_a_cursor_says_again_what_it_was_written_from(moment, key):
    assert read_cursor(write_cursor(moment, key)) == (moment, key)


def test_a_cursor_is_the_same_moment_in_any_time_zone():
    there = NOON.astimezone(timezone(timedelta(hours=5)))
    assert read_cursor(write_cursor(there, "k"))[0] == NOON


@pytest.mark.parametrize(("found", "held", "follows"), [(0, 0, False), (2, 2, False), (3, 2, True)])
def test_a_row_too_many_is_left_for_the_next_page(found, held, follows):
    columns = models_seen.c.first_seen_at, models_seen.c.config_hash
    rows = [SimpleNamespace(_mapping={"first_seen_at": NOON, "config_hash": f"{number}"}) for number in range(found)]
    page = page_of(rows, *columns, lambda row: row._mapping["config_hash"], limit=2)
    assert page.items == tuple(f"{number}" for number in range(held))
    assert page.next_cursor == (write_cursor(NOON, "1") if follows else None)


@given(st.text(max_size=60))
def test_any_text_is_a_cursor_or_refused(text):
    with contextlib.suppress(InvalidCursor):
        moment, key = read_cursor(text)
        assert read_cursor(write_cursor(moment, key)) == (moment, key)


@pytest.mark.parametrize(
    "content",
    [
        '["2026-01-01T12:00:00+00:00"]',
        '["2026-01-01T12:00:00+00:00", "k", 1]',
        '["2026-01-01T12:00:00", "k"]',
        '["2026-01-01T12:00:00+00:00", true]',
        '["2026-01-01T12:00:00+00:00", 1.5]',
        '[1, "k"]',
        "[" * 100_000,
    ],
)
def test_what_no_cursor_holds_is_refused(content):
    with pytest.raises(InvalidCursor):
        read_cursor(base64.urlsafe_b64encode(content.encode()).decode())


@pytest.mark.parametrize(
    ("limit", "size"),
    [(-1, 1), (0, 1), (1, 1), (LARGEST_PAGE, LARGEST_PAGE), (LARGEST_PAGE + 1, LARGEST_PAGE)],
)
def test_a_page_holds_one_item_at_least_and_not_too_many(limit, size):
    assert page_size(limit) == size

"""Who gets a table."""

from __future__ import annotations

import pytest

from plimsoll.api.negotiation import wants_text


@pytest.mark.parametrize(
    ("accept", "is_text"),
    [
        (None, False),
        ("*/*", False),
        ("text/plain", True),
        ("text/*", True),
        ("text/plain;q=0.5, application/json", False),
        ("text/plain, application/json;q=0.9", True),
        ("application/json, text/plain", False),
        ("text/plain;q=oops", False),
        ("text/html", False),
    ],
)
async def test_a_table_goes_to_those_who_prefer_text(accept: str | None, is_text: bool):
    assert await wants_text(None, accept) is is_text


async def test_the_parameter_decides_where_it_is_given():
    assert await wants_text("text", "application/json")
    assert not await wants_text("json", "text/plain")

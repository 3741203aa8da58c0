"""Closing waits for those who ask, lets nobody else ask, and gives up on what hangs."""

from __future__ import annotations

import asyncio

import pytest

from plimsoll.service.ground.errors import DatabaseUnavailable
from plimsoll.service.persistence.under_way import UnderWay


async def test_the_end_waits_for_the_last_of_those_who_ask():
    under_way, may_end, ended = UnderWay(), asyncio.Event(), []

    async def ask() -> None:
        with under_way.one():
            await may_end.wait()
            ended.append("asked")

    asking = [asyncio.create_task(ask()) for _ in range(2)]
    await asyncio.sleep(0)
    ending = asyncio.create_task(under_way.end())
    await asyncio.sleep(0)
    assert not ending.done()
    may_end.set()
    await ending
    assert ended == ["asked"] * len(asking)


async def test_after_the_end_nobody_asks():
    under_way = UnderWay()
    await under_way.end()
    with pytest.raises(DatabaseUnavailable, match="stopped"), under_way.one():
        pytest.fail("asked all the same")


async def test_who_failed_is_waited_for_no_longer():
    under_way = UnderWay()
    with pytest.raises(ValueError, match="odd"), under_way.one():
        raise ValueError("odd")
    await under_way.end(most_seconds=60)


async def test_what_hangs_is_waited_for_so_long_and_no_longer():
    under_way = UnderWay()
    with under_way.one():
        await under_way.end(most_seconds=0)

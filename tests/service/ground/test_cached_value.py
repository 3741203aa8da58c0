from __future__ import annotations

import asyncio

import pytest

from plimsoll.service.ground.cached_value import CachedValue
from plimsoll.service.ground.errors import DatabaseUnavailable

MOST_SECONDS = 2.0


class Source:
    """A value that is read when the test says so, numbered from one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reads = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.error: Exception | None = None

    async def read(self) -> int:
        self.reads += 1
        number = self.reads
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return number

    def kept(self) -> CachedValue[int]:
        return CachedValue(self.read, most_seconds=MOST_SECONDS, clock=lambda: self.now)


async def turns() -> None:
    """Let what is under way end."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_however_many_want_it_at_once_it_is_read_once():
    source = Source()
    kept = source.kept()
    assert await asyncio.gather(*(kept.get() for _ in range(100))) == [1] * 100
    assert source.reads == 1


async def test_up_to_half_its_age_it_is_not_read_again():
    source = Source()
    kept = source.kept()
    await kept.get()
    source.now = 1.0
    assert await kept.get() == 1
    await turns()
    assert source.reads == 1


async def test_beyond_half_its_age_it_is_read_anew_and_nobody_waits_for_that():
    source = Source()
    kept = source.kept()
    await kept.get()
    source.now = 1.001
    source.may_end.clear()
    assert [await kept.get() for _ in range(3)] == [1, 1, 1]
    source.may_end.set()
    await turns()
    assert (await kept.get(), source.reads) == (2, 2)


async def test_beyond_its_age_it_is_waited_for():
    source = Source()
    kept = source.kept()
    await kept.get()
    source.now = 2.0
    assert await kept.get() == 1
    source.now = 3.0
    await turns()
    source.now = 4.001
    assert await kept.get() == 3


async def test_what_was_being_read_when_it_was_forgotten_is_read_once_more():
    source = Source()
    kept = source.kept()
    source.may_end.clear()
    early = asyncio.ensure_future(kept.get())
    await turns()
    kept.forget()
    source.may_end.set()
    assert await kept.get() == 2
    assert await early == 1
    assert await kept.get() == 2


async def test_an_error_is_raised_by_who_waits_and_by_nobody_else():
    source = Source()
    kept = source.kept()
    await kept.get()
    source.error = DatabaseUnavailable("It is away.")
    source.now = 1.5
    assert await kept.get() == 1
    await turns()
    source.now = 2.5
    with pytest.raises(DatabaseUnavailable):
        await kept.get()
    source.error = None
    assert await kept.get() == 4

"""One timer for the limits of all requests."""

from __future__ import annotations

import asyncio

import pytest

from plimsoll.api.time_limits import TimeLimits


async def waited(limits: TimeLimits, seconds: float, *, begins_after: float | None = None) -> bool:
    """Return whether a wait came to its end, as that of something that perhaps begins meanwhile."""
    limit = limits.begun()
    try:
        async with limit:
            if begins_after is not None:
                await asyncio.sleep(begins_after)
                limits.lift(limit)
                seconds -= begins_after
            await asyncio.sleep(seconds)
    except TimeoutError:
        return False
    finally:
        limits.forget(limit)
    return True


async def test_what_lasts_too_long_is_ended_and_nothing_else():
    limits = TimeLimits(0.1)
    ended = await asyncio.gather(waited(limits, 0.01), waited(limits, 10), waited(limits, 0.3, begins_after=0.05))
    assert ended == [True, False, True]


async def test_each_has_the_whole_time_however_long_others_have_waited():
    limits = TimeLimits(0.2)

    async def later() -> bool:
        await asyncio.sleep(0.15)
        return await waited(limits, 0.1)

    # The timer goes off for the first while the second has half its time left.
    assert await asyncio.gather(waited(limits, 10), later()) == [False, True]


async def test_after_a_rest_there_is_a_timer_again():
    limits = TimeLimits(0.05)
    assert await waited(limits, 0)
    await asyncio.sleep(0.1)
    assert not await waited(limits, 10)


def test_a_loop_that_has_ended_takes_no_timer_with_it():
    limits = TimeLimits(0.05)
    assert asyncio.run(waited(limits, 0))
    assert not asyncio.run(waited(limits, 10))


@pytest.mark.parametrize("steps", [1, 3])
async def test_what_begins_in_the_moment_it_is_due_goes_on(steps: int):
    limits = TimeLimits(0.0)
    limit = limits.begun()
    async with limit:
        for _ in range(steps):
            # Due by now, and not yet ended.
            limits._end_those_due()
            limits.lift(limit)
        await asyncio.sleep(0.01)
    assert not limit.expired()

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from plimsoll.service.ground.errors import Overloaded, SearchLimitReached
from plimsoll.service.ground.settings import PLANNING_THREADS
from plimsoll.service.plans.threads import LATEST_SHARE, PlanningThreads, PlanningTimedOut

# A request may take so long, and so wait for 10 s at most.
TIMEOUT_SECONDS = 100.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Gate:
    """Work that goes on once the gate is opened, and counts how often it was begun."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Semaphore(0)
        self.begun = 0

    def __call__(self, _should_stop: object) -> str:
        self.begun += 1
        self.entered.release()
        self.opened.wait()
        return "done"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.opened.set()


def threads_of_one(clock: Clock | None = None) -> PlanningThreads:
    """Return threads that one caller may have for itself."""
    clock = clock or Clock()
    return PlanningThreads(TIMEOUT_SECONDS, most_of_one=PLANNING_THREADS, most_waiting_of_one=1000, clock=clock)


async def waiting(threads: PlanningThreads, gate: Gate, count: int) -> list[asyncio.Task[str]]:
    """Return so many searches that do not end; the first of them have the threads."""
    tasks = [asyncio.ensure_future(threads.run(gate)) for _ in range(count)]
    for _ in range(min(count, PLANNING_THREADS)):
        await asyncio.to_thread(gate.entered.acquire)
    return tasks


async def after_one_search_of(seconds: float, clock: Clock) -> PlanningThreads:
    threads = threads_of_one(clock)

    def search(_should_stop: object) -> None:
        clock.now += seconds

    await threads.run(search)
    return threads


async def test_what_would_wait_for_longer_than_a_tenth_of_its_time_is_refused(clock: Clock, gate: Gate):
    # The mean of nothing and 40 s is 4 s: with four threads the turn comes 1 s later for each that waits.
    threads = await after_one_search_of(4 / LATEST_SHARE, clock)
    # Ten are ahead of the last one here, the six behind the threads and those in them: 10 s.
    tasks = await waiting(threads, gate, PLANNING_THREADS + 10)
    with pytest.raises(Overloaded) as refused:
        await threads.run(gate)
    assert refused.value.retry_after_seconds == 11
    gate.opened.set()
    assert await asyncio.gather(*tasks) == ["done"] * len(tasks)
    assert await threads.run(gate) == "done"


class LoopClock(Clock):
    """A clock that stands still in the threads: their searches take no time, and yet end one after the other."""

    def __call__(self) -> float:
        return self.now if threading.current_thread() is threading.main_thread() else 0.0


async def test_searches_that_end_one_after_the_other_are_waited_for_one_after_the_other():
    clock, ends = LoopClock(), threading.Semaphore(0)
    threads = threads_of_one(clock)
    tasks = {asyncio.ensure_future(threads.run(lambda _should_stop: ends.acquire())) for _ in range(16)}

    async def end_one() -> None:
        clock.now += 1.0
        ends.release()
        (done,), _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        tasks.remove(done)

    # The first end begins to count, the second comes 1 s after it.
    await end_one()
    await end_one()
    # Of 14 under way ten wait, and the next would be the eleventh: 11 s.
    with pytest.raises(Overloaded) as refused:
        await threads.run(lambda _should_stop: None)
    assert refused.value.retry_after_seconds == 11
    await end_one()
    # The tenth, after 10 s.
    tenth = asyncio.ensure_future(threads.run(lambda _should_stop: "done"))
    ends.release(len(tasks))
    assert await tenth == "done"
    await asyncio.gather(*tasks)


async def test_many_short_searches_wait_their_turn(clock: Clock, gate: Gate):
    # A mean of 0.1 s: the two hundredth waits for 5 s.
    threads = await after_one_search_of(0.1 / LATEST_SHARE, clock)
    tasks = await waiting(threads, gate, 200)
    gate.opened.set()
    assert await asyncio.gather(*tasks) == ["done"] * 200


async def test_what_is_late_before_its_turn_is_not_begun(clock: Clock, gate: Gate):
    threads = threads_of_one(clock)
    tasks = await waiting(threads, gate, PLANNING_THREADS + 1)
    clock.now += TIMEOUT_SECONDS
    gate.opened.set()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert ends[:-1] == ["done"] * PLANNING_THREADS
    assert isinstance(ends[-1], PlanningTimedOut)
    assert gate.begun == PLANNING_THREADS


async def test_a_search_that_fails_fails_for_who_asked_and_gives_its_thread_back():
    threads = threads_of_one()

    def search(_should_stop: object) -> None:
        raise ValueError("no")

    for _ in range(2 * PLANNING_THREADS):
        with pytest.raises(ValueError, match="no"):
            await threads.run(search)


def shared_threads(clock: Clock, *, most_waiting_of_one: int) -> PlanningThreads:
    """Return threads of which one caller has all but one."""
    return PlanningThreads(
        TIMEOUT_SECONDS, most_of_one=PLANNING_THREADS - 1, most_waiting_of_one=most_waiting_of_one, clock=clock
    )


async def test_one_caller_beyond_its_share_is_refused_and_another_gets_through(clock: Clock, gate: Gate):
    threads = shared_threads(clock, most_waiting_of_one=2)
    tasks = [asyncio.ensure_future(threads.run(gate, asked_by="greedy")) for _ in range(PLANNING_THREADS + 1)]
    for _ in range(PLANNING_THREADS - 1):
        await asyncio.to_thread(gate.entered.acquire)
    with pytest.raises(SearchLimitReached, match="2 of your plans"):
        await threads.run(gate, asked_by="greedy")
    assert await threads.run(lambda _should_stop: "through", asked_by="other") == "through"
    gate.opened.set()
    assert await asyncio.gather(*tasks) == ["done"] * len(tasks)


async def test_there_is_no_room_for_one_more_of_a_caller_whose_searches_wait_and_there_is_for_anothers(
    clock: Clock, gate: Gate
):
    threads = shared_threads(clock, most_waiting_of_one=1)
    tasks = [asyncio.ensure_future(threads.run(gate, asked_by="greedy")) for _ in range(PLANNING_THREADS - 1)]
    for _ in tasks:
        await asyncio.to_thread(gate.entered.acquire)
    threads.check_room("greedy")
    tasks.append(asyncio.ensure_future(threads.run(gate, asked_by="greedy")))
    await asyncio.sleep(0)
    with pytest.raises(SearchLimitReached, match="1 of your plans"):
        threads.check_room("greedy")
    threads.check_room("other")
    gate.opened.set()
    await asyncio.gather(*tasks)
    threads.check_room("greedy")


async def test_there_is_no_room_where_a_callers_own_pace_makes_one_more_wait_too_long(clock: Clock, gate: Gate):
    # The mean of nothing and 440 s is 44 s: in four threads the first that waits does so for 11 s, of 10 at most.
    threads = await after_one_search_of(44 / LATEST_SHARE, clock)
    tasks = await waiting(threads, gate, PLANNING_THREADS)
    with pytest.raises(Overloaded):
        threads.check_room("")
    gate.opened.set()
    await asyncio.gather(*tasks)


async def test_a_callers_long_searches_do_not_count_as_anothers(clock: Clock, gate: Gate):
    threads = shared_threads(clock, most_waiting_of_one=1000)

    def search(_should_stop: object) -> None:
        clock.now += 99.0

    # A mean of 9.9 s in three threads: its own second that waits would wait for 6.6 s, its fourth for more than 10 s.
    await threads.run(search, asked_by="greedy")
    tasks = [asyncio.ensure_future(threads.run(gate, asked_by="greedy")) for _ in range(PLANNING_THREADS + 2)]
    for _ in range(PLANNING_THREADS - 1):
        await asyncio.to_thread(gate.entered.acquire)
    with pytest.raises(Overloaded):
        await threads.run(gate, asked_by="greedy")
    tasks += [asyncio.ensure_future(threads.run(gate, asked_by="other")) for _ in range(10)]
    await asyncio.to_thread(gate.entered.acquire)
    gate.opened.set()
    assert await asyncio.gather(*tasks) == ["done"] * len(tasks)

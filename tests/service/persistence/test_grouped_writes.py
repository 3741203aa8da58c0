from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from plimsoll.service.ground.errors import DatabaseUnavailable, Overloaded, Unstorable
from plimsoll.service.persistence.grouped_writes import LONGEST_WAIT_SECONDS, GroupedWrites


class Disk:
    """Writes slowly, and keeps each group apart."""

    def __init__(self, *, bad: str = "") -> None:
        self.groups: list[list[str]] = []
        self.bad = bad
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def write(self, group: Sequence[str]) -> Sequence[str]:
        await self.may_go_on.wait()
        if self.bad in group:
            raise Unstorable
        self.groups.append(list(group))
        return [f"{name} is stored" for name in group]


async def test_what_arrives_during_a_write_goes_with_the_next_one():
    disk = Disk()
    writes = GroupedWrites(disk.write)
    disk.may_go_on.clear()
    first = asyncio.create_task(writes.put("a"))
    await asyncio.sleep(0.01)
    others = [asyncio.create_task(writes.put(name)) for name in "bcd"]
    await asyncio.sleep(0.01)
    disk.may_go_on.set()
    await asyncio.gather(first, *others)
    assert disk.groups == [["a"], ["b", "c", "d"]]


async def test_each_is_told_what_became_of_its_own_record():
    writes = GroupedWrites(Disk().write)
    assert await asyncio.gather(writes.put("a"), writes.put("b")) == ["a is stored", "b is stored"]


async def test_nobody_is_told_before_the_write_is_done():
    disk = Disk()
    writes = GroupedWrites(disk.write)
    disk.may_go_on.clear()
    put = asyncio.create_task(writes.put("a"))
    await asyncio.sleep(0.02)
    assert not put.done()
    disk.may_go_on.set()
    await put


@pytest.mark.parametrize(("count", "groups"), [(99, [99]), (100, [100]), (101, [100, 1])])
async def test_a_group_holds_a_hundred_records(count, groups):
    disk = Disk()
    writes = GroupedWrites(disk.write)
    await asyncio.gather(*(writes.put(str(number)) for number in range(count)))
    assert [len(group) for group in disk.groups] == groups


async def test_a_record_at_fault_fails_alone():
    disk = Disk(bad="bad")
    writes = GroupedWrites(disk.write)
    outcomes = await asyncio.gather(*map(writes.put, ["a", "bad", "b"]), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [str, Unstorable, str]


async def test_writing_goes_on_after_an_error():
    disk = Disk(bad="bad")
    writes = GroupedWrites(disk.write)
    with pytest.raises(Unstorable):
        await writes.put("bad")
    await writes.put("good")
    assert disk.groups == [["good"]]


async def test_those_who_wait_when_the_loop_stops_are_told():
    disk = Disk()
    writes = GroupedWrites(disk.write)
    disk.may_go_on.clear()
    puts = [asyncio.create_task(writes.put("a"))]
    await asyncio.sleep(0.01)
    puts.append(asyncio.create_task(writes.put("b")))
    await asyncio.sleep(0.01)
    (writing,) = [task for task in asyncio.all_tasks() if task.get_name() == "grouped writes"]
    writing.cancel()
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [DatabaseUnavailable] * 2


async def test_closing_waits_for_what_was_put():
    disk = Disk()
    writes = GroupedWrites(disk.write)
    put = asyncio.create_task(writes.put("a"))
    await asyncio.sleep(0)
    await writes.close()
    assert disk.groups == [["a"]]
    await put


async def test_what_nobody_waits_for_any_more_is_not_written():
    disk = Disk()
    writes = GroupedWrites(disk.write)
    disk.may_go_on.clear()
    kept = asyncio.create_task(writes.put("a"))
    await asyncio.sleep(0.01)
    left = asyncio.create_task(writes.put("b"))
    await asyncio.sleep(0.01)
    left.cancel()
    disk.may_go_on.set()
    await kept
    await writes.close()
    assert disk.groups == [["a"]]


async def test_closing_with_nothing_to_write_returns():
    await GroupedWrites(Disk().write).close()


async def test_what_comes_once_the_first_has_waited_too_long_is_refused_and_the_rest_is_written():
    disk, now = Disk(), 0.0
    writes = GroupedWrites(disk.write, clock=lambda: now)
    disk.may_go_on.clear()
    tasks = [asyncio.create_task(writes.put("under way"))]
    await asyncio.sleep(0.01)
    tasks.append(asyncio.create_task(writes.put("first")))
    await asyncio.sleep(0.01)
    now = LONGEST_WAIT_SECONDS
    tasks.append(asyncio.create_task(writes.put("in time")))
    await asyncio.sleep(0.01)
    now = LONGEST_WAIT_SECONDS + 0.5
    with pytest.raises(Overloaded, match="2 plans are waiting to be stored") as refused:
        await writes.put("too late")
    assert refused.value.retry_after_seconds == 4
    disk.may_go_on.set()
    await asyncio.gather(*tasks)
    await writes.put("again")
    assert disk.groups == [["under way"], ["first", "in time"], ["again"]]

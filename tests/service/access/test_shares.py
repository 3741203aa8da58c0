from __future__ import annotations

import pytest

from plimsoll.service.access.shares import StreamShares, Turns
from plimsoll.service.ground.errors import StreamLimitReached


async def test_one_caller_has_its_share_of_the_places_and_another_has_the_rest():
    turns = Turns(4, most_of_one=3)
    greedy = [turns.ask("a") for _ in range(10)]
    assert [turn.done() for turn in greedy] == [True] * 3 + [False] * 7
    assert turns.position("b") == 0
    assert turns.ask("b").done()
    assert turns.position("b") == 1


async def test_a_place_that_is_free_goes_to_who_has_fewest():
    turns = Turns(4, most_of_one=3)
    greedy = [turns.ask("a") for _ in range(6)]
    first = turns.ask("b")
    later = [turns.ask("b"), turns.ask("c")]
    turns.end("a", greedy[0])
    # a has two, b one, c none.
    assert [turn.done() for turn in later] == [False, True]
    turns.end("b", first)
    assert later[0].done()
    assert not greedy[3].done()


async def test_callers_who_have_as_many_take_turns():
    turns = Turns(1, most_of_one=1)
    under_way = turns.ask("z")
    asked = [(caller, turns.ask(caller)) for caller in ("a", "a", "b", "b")]
    order = []
    turns.end("z", under_way)
    while asked:
        (now,) = [entry for entry in asked if entry[1].done()]
        order.append(now[0])
        asked.remove(now)
        turns.end(*now)
    assert order == ["a", "b", "a", "b"]


async def test_who_has_its_full_share_is_before_nobody():
    turns = Turns(4, most_of_one=3)
    for caller in "aaaaabbb":
        turns.ask(caller)
    # a has three places and two that wait; b has one and two that wait, of which one comes before c's first.
    assert turns.others_before("c", turns.position("c")) == 1
    assert turns.others_before("c", 5) == 2
    assert (turns.under_way("a"), turns.under_way("b"), turns.under_way("c"), turns.under_way()) == (5, 3, 0, 8)


async def test_who_no_longer_waits_leaves_its_turn_to_the_next():
    turns = Turns(1, most_of_one=1)
    first, gone, last = turns.ask("a"), turns.ask("b"), turns.ask("c")
    turns.end("b", gone)
    turns.end("a", first)
    assert last.done()
    turns.end("c", last)
    assert turns.under_way() == 0


def test_a_caller_holds_so_many_streams_and_no_more():
    shares = StreamShares(2)
    with shares.one("a"):
        with shares.one("a"):
            with pytest.raises(StreamLimitReached, match="2 streams"), shares.one("a"):
                pass
            with shares.one("b"):
                pass
        with shares.one("a"):
            pass


def test_a_stream_that_fails_is_counted_no_longer():
    shares = StreamShares(1)
    with pytest.raises(ValueError, match="no"), shares.one("a"):
        raise ValueError("no")
    with shares.one("a"):
        pass

"""Pieces as blocks of the allocator, and a step's events replayed."""

import pytest

from benchmarks.reserved_memory.planned_events import Replay, reserved_by_events
from plimsoll.planners.memory.programs.choice import events_of, prepared
from plimsoll.planners.memory.steps.on_rank import NO_BYTES
from plimsoll.planners.memory.steps.step import Held
from plimsoll.service.worker.recording.allocator import CachingAllocator
from tests.planners.factories import small_llama
from tests.planners.training_cases import asked

MIB = 2**20


def piece(name="kept"):
    return Held("activations", name, NO_BYTES)


def replay(block_mib=0):
    return Replay(CachingAllocator(), block_mib * MIB)


def test_a_piece_is_one_block_or_as_many_as_it_takes():
    whole, cut = replay(), replay(block_mib=30)
    for each in (whole, cut):
        each.grow(piece(), 70 * MIB)
    assert (whole.allocator.segments, cut.allocator.segments) == (1, 3)
    assert (whole.allocator.allocated_bytes, cut.allocator.allocated_bytes) == (70 * MIB, 70 * MIB)


def test_a_piece_that_shrinks_lets_go_of_what_came_last():
    # Of 30, 30 and 10 MiB it lets go of the 10 and one of 30, in whose place 15 are allocated.
    held, cut = piece(), replay(block_mib=30)
    cut.grow(held, 70 * MIB)
    cut.shrink(held, 25 * MIB)
    assert (cut.allocator.segments, cut.allocator.allocated_bytes) == (3, 45 * MIB)


def test_a_piece_that_is_handed_over_goes_with_the_other():
    source, target, whole = piece(), piece(), replay()
    whole.grow(source, 20 * MIB)
    whole.hand_over(source, target)
    whole.drop([source])
    assert whole.allocator.allocated_bytes == 20 * MIB
    whole.drop([target])
    assert whole.allocator.allocated_bytes == 0


@pytest.mark.parametrize(("name", "segments"), [("kept", 1), ("gathered", 2), ("shards", 2)])
def test_pieces_of_other_pools_do_not_use_what_the_main_one_let_go_of(name, segments):
    whole, first = replay(), piece()
    whole.grow(first, 20 * MIB)
    whole.drop([first])
    whole.grow(piece(name), 20 * MIB)
    assert whole.allocator.segments == segments


@pytest.mark.parametrize("framework", ["reference", "fsdp2", "megatron"])
@pytest.mark.parametrize("expandable", [False, True])
def test_what_is_reserved_covers_what_is_allocated(framework, expandable):
    layout = {"data_parallel": 2, "shard_group": 2, "zero_stage": 3 if framework == "fsdp2" else 0}
    question = asked(framework, model=small_llama(), sequence_length=4096, layout=layout)
    most = max(event.total for event in events_of(prepared(question), 0, 0))
    assert reserved_by_events(question, 0, block_bytes=2 * MIB, expandable_segments=expandable) >= most

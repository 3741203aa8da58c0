"""Hand-worked cases of the caching allocator."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll.service.worker.recording.allocator import CachingAllocator, OutOfMemory, new_segment_bytes, replay
from plimsoll.service.worker.recording.ledger import Kind, Ledger

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("request_bytes", "segment_bytes"),
    [
        (512, 2 * MIB),
        (1 * MIB, 2 * MIB),
        (1 * MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
    ],
)
def test_segment_sizes_at_the_edges_of_the_pools(request_bytes, segment_bytes):
    assert new_segment_bytes(request_bytes) == segment_bytes


def test_a_request_is_rounded_to_512_bytes():
    allocator = CachingAllocator()
    allocator.allocate(1, 513)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (1024, 2 * MIB)


def test_an_empty_request_takes_nothing():
    allocator = CachingAllocator()
    allocator.allocate(1, 0)
    allocator.release(1)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)


def test_small_requests_share_a_segment_of_two_mib():
    allocator = CachingAllocator()
    allocator.allocate(1, MIB)
    allocator.allocate(2, MIB)
    assert allocator.segments == 1
    allocator.allocate(3, 1)
    assert allocator.segments == 2


def test_large_requests_share_a_segment_of_twenty_mib():
    # 20 - 8 = 12 and 12 - 8 = 4 MiB are left; the third 8 MiB needs a segment of its own.
    allocator = CachingAllocator()
    for number in range(3):
        allocator.allocate(number, 8 * MIB)
    assert (allocator.segments, allocator.reserved_bytes) == (2, 40 * MIB)


@pytest.mark.parametrize(
    ("rest_bytes", "counted_bytes"),
    [(MIB - 512, 20 * MIB), (MIB, 20 * MIB), (MIB + 512, 19 * MIB - 512)],
)
def test_a_large_block_is_split_only_when_more_than_one_mib_is_left(rest_bytes, counted_bytes):
    # An unsplit block counts whole: `memory_allocated` counts blocks, not requests.
    allocator = CachingAllocator()
    allocator.allocate(1, 20 * MIB)
    allocator.release(1)
    allocator.allocate(2, 20 * MIB - rest_bytes)
    assert (allocator.reserved_bytes, allocator.allocated_bytes) == (20 * MIB, counted_bytes)


def test_a_freed_block_is_used_again_before_more_is_reserved():
    allocator = CachingAllocator()
    allocator.allocate(1, 30 * MIB)
    allocator.release(1)
    allocator.allocate(2, 30 * MIB)
    assert (allocator.segments, allocator.peak_reserved_bytes) == (1, 30 * MIB)


def test_the_smallest_block_that_is_large_enough_is_taken():
    allocator = CachingAllocator()
    allocator.allocate(1, 40 * MIB)
    allocator.allocate(2, 30 * MIB)
    allocator.release(1)
    allocator.release(2)
    allocator.allocate(3, 30 * MIB)
    allocator.allocate(4, 40 * MIB)
    assert allocator.reserved_bytes == 70 * MIB


def test_free_neighbours_merge_from_both_sides():
    # 4 + 4 + 4 of 20 MiB: after all are free the segment is one block and holds 20 again.
    allocator = CachingAllocator()
    for number in range(3):
        allocator.allocate(number, 4 * MIB)
    allocator.release(0)
    allocator.release(2)
    allocator.release(1)
    allocator.allocate(3, 20 * MIB)
    assert (allocator.segments, allocator.allocated_bytes) == (1, 20 * MIB)


def test_what_lies_between_live_blocks_cannot_be_merged():
    # Free 4 + 4 MiB apart and 8 at the end: no room for 9 although 16 are free.
    allocator = CachingAllocator()
    for number in range(3):
        allocator.allocate(number, 4 * MIB)
    allocator.release(0)
    allocator.allocate(3, 9 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_streams_have_pools_of_their_own():
    allocator = CachingAllocator()
    allocator.allocate(1, 30 * MIB, stream=0)
    allocator.release(1)
    allocator.allocate(2, 30 * MIB, stream=1)
    assert allocator.reserved_bytes == 60 * MIB


def test_a_ledger_is_replayed_in_either_way():
    # Of expandable segments 30 MiB map two pages of 20 and 50 one more; fixed ones reserve 30 + 50.
    events = _events(("+", 1, 30 * MIB), ("-", 1, 0), ("+", 2, 50 * MIB))
    assert replay(events, expandable_segments=True).reserved_bytes == 60 * MIB
    assert replay(events).reserved_bytes == 80 * MIB


def test_empty_segments_are_given_back_before_a_request_fails():
    allocator = CachingAllocator(capacity_bytes=50 * MIB)
    allocator.allocate(1, 30 * MIB)
    allocator.release(1)
    allocator.allocate(2, 40 * MIB)
    assert (allocator.retries, allocator.reserved_bytes) == (1, 40 * MIB)


def test_a_request_beyond_the_capacity_fails_with_its_numbers():
    allocator = CachingAllocator(capacity_bytes=50 * MIB)
    allocator.allocate(1, 50 * MIB)
    with pytest.raises(OutOfMemory) as failure:
        allocator.allocate(2, 1)
    assert (failure.value.wanted_bytes, failure.value.allocated_bytes) == (2 * MIB, 50 * MIB)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40 * MIB), st.integers(0, 1)), max_size=60), st.booleans())
def test_reserved_memory_always_covers_what_is_allocated(requests, expandable_segments):
    allocator = CachingAllocator(expandable_segments=expandable_segments)
    live = set()
    for number, size_bytes, stream in requests:
        if number in live:
            allocator.release(number)
            live.remove(number)
        else:
            allocator.allocate(number, size_bytes, stream=stream)
            live.add(number)
        assert allocator.allocated_bytes <= allocator.reserved_bytes
    for number in live:
        allocator.release(number)
    assert allocator.allocated_bytes == 0


def _events(*actions):
    ledger, pieces = Ledger(), {}
    for action, number, size_bytes in actions:
        if action == "+":
            pieces[number] = ledger.allocate(size_bytes, kind=Kind.INPUT, origin="test")
        else:
            ledger.release(pieces[number])
    return ledger.events

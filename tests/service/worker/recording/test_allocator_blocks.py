"""Free blocks of a segment: found, cut and merged."""

import pytest

from plimsoll.service.worker.recording.allocator_blocks import Block, FreeBlocks, PoolKey

POOL = PoolKey(is_small=False, stream=0)


def segment(*sizes, number=0):
    """Return the blocks of a segment that is cut into so many bytes each, all in use."""
    rest = Block(pool=POOL, segment=number, address=0, size_bytes=sum(sizes), is_free=False)
    blocks = []
    for size in sizes[:-1]:
        blocks.append(rest)
        rest = rest.cut_off(size)
    return [*blocks, rest]


def test_blocks_that_are_cut_off_lie_one_behind_the_other():
    blocks = segment(3, 4, 5)
    assert [(block.address, block.size_bytes) for block in blocks] == [(0, 3), (3, 4), (7, 5)]
    assert [block.before for block in blocks] == [None, *blocks[:2]]
    assert [block.after for block in blocks] == [*blocks[1:], None]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1)])
def test_free_neighbours_become_one_block_in_whatever_order_they_are_freed(order):
    blocks, free = segment(3, 4, 5), FreeBlocks()
    for index in order:
        whole = free.add(blocks[index])
    assert (whole.size_bytes, whole.is_whole_segment) == (12, True)
    assert list(free.every()) == [whole]


def test_a_block_in_use_keeps_its_neighbours_apart():
    blocks, free = segment(3, 4, 5), FreeBlocks()
    free.add(blocks[0])
    free.add(blocks[2])
    assert [block.size_bytes for block in free.every()] == [3, 5]


def test_the_smallest_block_that_is_large_enough_is_taken():
    free = FreeBlocks()
    for number, size in enumerate((9, 5, 7)):
        free.add(*segment(size, number=number))
    assert free.take_best_fit(POOL, 6).size_bytes == 7
    assert free.take_best_fit(POOL, 10) is None
    assert free.take_best_fit(PoolKey(is_small=False, stream=1), 1) is None


def test_of_equal_blocks_the_lowest_is_taken():
    blocks, free = segment(4, 1, 4), FreeBlocks()
    free.add(blocks[2])
    free.add(blocks[0])
    assert free.take_best_fit(POOL, 4) is blocks[0]


def test_a_block_that_can_grow_counts_as_large_as_it_may_become():
    (end, space), free = segment(5, 100), FreeBlocks()
    space.is_mapped = False
    free.add(end)
    (hole,) = segment(9, number=1)
    free.add(hole)
    assert free.take_best_fit(POOL, 4) is hole

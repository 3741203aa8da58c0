"""How tensors are cut over ZeRO or FSDP ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.sharding.cuts import EachTensorFlat, FirstDimension, FlatBuffers, LocalTensor, Whole


def tensor(*shape: int, elements: int | None = None, cut_dim: int = 0) -> LocalTensor:
    plain = LocalTensor(shape=shape, elements=0)
    return LocalTensor(shape=shape, elements=plain.stored_elements if elements is None else elements, cut_dim=cut_dim)


def rank_by_rank(cut, tensors: list[LocalTensor], ranks: int) -> list[list[tuple[tuple[int, ...], int, int]]]:
    """Return (shape, the model's elements, stored elements) of each tensor on each rank."""
    return [
        [
            (piece.shape, piece.elements, piece.stored_elements)
            for piece in pieces
            for _ in piece.ranks
        ]
        for pieces in cut.pieces(tensors, ranks)
    ]  # fmt: skip


def test_ten_rows_over_four_ranks_are_three_three_three_and_one():
    (held,) = rank_by_rank(FirstDimension(), [tensor(10, 6)], 4)
    assert held == [((3, 6), 18, 18), ((3, 6), 18, 18), ((3, 6), 18, 18), ((1, 6), 6, 18)]


def test_five_rows_over_four_ranks_leave_the_last_one_empty():
    (held,) = rank_by_rank(FirstDimension(), [tensor(5, 2)], 4)
    assert [shape for shape, _, _ in held] == [(2, 2), (2, 2), (1, 2), (0, 2)]
    assert {stored for _, _, stored in held} == {4}


@given(rows=st.integers(1, 70), ranks=st.integers(2, 40))
def test_first_dimensions_are_cut_as_torch_cuts_them(rows: int, ranks: int):
    chunks = torch.chunk(torch.empty(rows, 3, device="meta"), ranks)
    real = [tuple(chunk.shape) for chunk in chunks] + [(0, 3)] * (ranks - len(chunks))
    (held,) = rank_by_rank(FirstDimension(), [tensor(rows, 3)], ranks)
    assert [shape for shape, _, _ in held] == real


def test_another_dimension_is_cut_evenly_or_not_at_all():
    (held,) = rank_by_rank(FirstDimension(), [tensor(2, 8, 3, cut_dim=1)], 4)
    assert held == [((2, 2, 3), 12, 12)] * 4
    with pytest.raises(ImpossibleLayout, match="Dimension 1 is cut evenly only: 9"):
        rank_by_rank(FirstDimension(), [tensor(2, 9, 3, cut_dim=1)], 4)


def test_zero3_pads_every_tensor_to_equal_parts():
    # 15 elements over 4 ranks: parts of 4, the last of which has 3.
    (held,) = rank_by_rank(EachTensorFlat(), [tensor(5, 3)], 4)
    assert held == [((4,), 4, 4)] * 3 + [((4,), 3, 4)]


def test_zero3_leaves_ranks_bare_that_a_small_tensor_does_not_reach():
    (held,) = rank_by_rank(EachTensorFlat(), [tensor(5)], 4)
    assert [elements for _, elements, _ in held] == [2, 2, 1, 0]


def test_whole_tensors_stand_on_every_rank():
    (held,) = rank_by_rank(Whole(), [tensor(5, 3, elements=12)], 3)
    assert held == [((5, 3), 12, 15)] * 3


def test_a_flat_buffer_is_cut_without_regard_to_tensors():
    # 10 and 11 elements, padded to a multiple of 2 x 4 ranks: 24, so 6 a rank.
    cut = FlatBuffers(rank_multiple=2)
    first, second = rank_by_rank(cut, [tensor(10), tensor(11)], 4)
    assert [shape for shape, _, _ in first] == [(6,), (4,), (0,), (0,)]
    assert [shape for shape, _, _ in second] == [(0,), (2,), (6,), (3,)]
    elements, stored = cut.totals([(tensor(10), 1), (tensor(11), 1)], 4)
    assert (elements.tolist(), stored.tolist()) == ([6, 6, 6, 3], [6] * 4)


def test_megatron_fills_from_the_back_and_starts_tensors_on_64_elements():
    # The second tensor lies at 0 to 70, the first at 128 to 138; the buffer ends at 256: 128 a rank.
    cut = FlatBuffers(rank_multiple=1, tensor_multiple=64, buffer_multiple=128, is_reversed=True)
    first, second = rank_by_rank(cut, [tensor(10), tensor(70)], 2)
    assert [shape for shape, _, _ in first] == [(0,), (10,)]
    assert [shape for shape, _, _ in second] == [(70,), (0,)]
    elements, stored = cut.totals([(tensor(10), 1), (tensor(70), 1)], 2)
    assert (elements.tolist(), stored.tolist()) == ([70, 10], [128, 128])


def test_full_buffers_are_closed_and_padded_each():
    # Buffers close at 100 elements: the first holds 3 x 40 = 120, padded to 122 for two ranks of 61; 40 are left.
    cut = FlatBuffers(rank_multiple=61, smallest_buffer=100)
    held = rank_by_rank(cut, [tensor(40)] * 4, 2)
    assert [shape for shape, _, _ in held[1]] == [(21,), (19,)]
    assert [shape for shape, _, _ in held[3]] == [(40,), (0,)]
    elements, stored = cut.totals([(tensor(40), 4)], 2)
    assert (elements.tolist(), stored.tolist()) == ([61 + 40, 59], [122, 122])


def test_buffers_grow_with_the_ranks_where_the_stack_says_so():
    # 50 elements a rank and two ranks: closed at 100 as above.
    grown = FlatBuffers(rank_multiple=61, buffer_per_rank=50).totals([(tensor(40), 4)], 2)[1]
    assert grown.tolist() == [122, 122]


def test_padding_within_a_tensor_is_not_the_models():
    # 12 of 16 elements are the model's; with 4 more over two ranks of 10.
    cut = FlatBuffers(rank_multiple=1)
    tensors = [tensor(4, 4, elements=12), tensor(4)]
    assert rank_by_rank(cut, tensors, 2) == [
        [((10,), 10, 10), ((6,), 2, 6)],
        [((0,), 0, 0), ((4,), 4, 4)],
    ]
    assert cut.totals([(each, 1) for each in tensors], 2)[0].tolist() == [10, 6]


LENGTHS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=8)


@given(
    lengths=LENGTHS,
    ranks=st.integers(2, 9),
    cut=st.sampled_from(
        [
            EachTensorFlat(),
            FlatBuffers(rank_multiple=2),
            FlatBuffers(rank_multiple=1, tensor_multiple=8, buffer_multiple=16, is_reversed=True),
            FlatBuffers(rank_multiple=1, tensor_multiple=4, smallest_buffer=50, is_reversed=True),
        ]
    ),
)
def test_pieces_add_up_to_the_tensors_and_to_the_totals(lengths, ranks, cut):
    tensors = [tensor(model + padding, elements=model) for model, padding in lengths if model + padding]
    pieces = list(cut.pieces(tensors, ranks))
    for each, parts in zip(tensors, pieces, strict=True):
        assert [rank for piece in parts for rank in piece.ranks] == list(range(ranks))
        assert sum(len(piece.ranks) * piece.elements for piece in parts) == each.elements
    elements, stored = cut.totals([(each, 1) for each in tensors], ranks)
    by_rank = [
        sum(piece.elements for parts in pieces for piece in parts if rank in piece.ranks) for rank in range(ranks)
    ]
    assert elements.tolist() == by_rank
    assert stored.min() == (stored.max() if tensors else 0)

"""A weight's shard on a tensor-parallel rank."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.architecture import Part, Split, Weight
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config

degrees = st.sampled_from([1, 2, 4, 8, 16])
models = st.sampled_from(["llama-2-7b", "llama-3.1-8b", "qwen2.5-72b", "qwen3-32b", "mistral-7b"])


def column(shape: tuple[int, ...], *, units: int = 0, dim: int = 0) -> Weight:
    return Weight(name="w", shape=shape, part=Part.ATTENTION, split=Split.COLUMN, dim=dim, units=units)


def test_a_column_split_divides_the_outputs() -> None:
    assert column((4096, 1024)).local_shape(4) == (1024, 1024)


def test_a_row_split_divides_the_inputs() -> None:
    weight = Weight(name="w", shape=(4096, 1024), part=Part.ATTENTION, split=Split.ROW, dim=1)
    assert weight.local_shape(4) == (4096, 256)


def test_a_replicated_weight_stands_whole_on_every_rank() -> None:
    assert Weight(name="w", shape=(4096,), part=Part.NORM).local_shape(8) == (4096,)


def test_one_rank_holds_everything() -> None:
    assert column((4096, 1024), units=8).local_shape(1) == (4096, 1024)


@pytest.mark.parametrize(("ranks", "rows"), [(4, 256), (8, 128), (16, 128), (64, 128)])
def test_key_value_heads_fewer_than_the_ranks_are_replicated(ranks: int, rows: int) -> None:
    # 8 heads of 128: two a rank on 4 ranks, one on 8, and one still on 16 and 64.
    assert column((1024, 4096), units=8).local_shape(ranks) == (rows, 4096)


def test_heads_are_dealt_out_whole_so_that_the_largest_shard_has_one_more() -> None:
    # 14 heads of 64 on 4 ranks: 4, 4, 3 and 3.
    assert column((896, 896), units=14).local_shape(4) == (256, 896)


def test_a_vocabulary_is_cut_in_ceilings() -> None:
    weight = Weight(name="w", shape=(50_257, 768), part=Part.EMBEDDING, split=Split.VOCABULARY, dim=0)
    # 50,257 / 8 = 6,282.1
    assert weight.local_shape(8) == (6_283, 768)


def test_the_shard_of_a_fused_query_key_value_matrix_keeps_whole_heads() -> None:
    # GPT-2: 12 heads of 64, three times; on 4 ranks three heads' queries, keys and values.
    assert column((768, 2304), units=12, dim=1).local_shape(4) == (768, 576)


def test_each_of_the_experts_is_split() -> None:
    weight = Weight(name="e{expert}", shape=(96, 64), part=Part.EXPERT, split=Split.COLUMN, dim=0, experts=8)
    assert weight.elements == 8 * 96 * 64
    assert weight.local_shape(4) == (24, 64)


@given(models, degrees)
def test_the_shards_add_up_to_the_weight_and_its_stated_replication(name: str, ranks: int) -> None:
    spec = describe_config(catalogue().model(name).config, name=name)
    for _, weight in spec.named_weights():
        assert ranks * local_elements(weight, ranks) == weight.elements * replication(weight, ranks)


def local_elements(weight: Weight, ranks: int) -> int:
    return math.prod(weight.local_shape(ranks)) * weight.tensors


def replication(weight: Weight, ranks: int) -> int:
    """Return on how many ranks each element stands, for degrees that divide the sizes or are divided by the heads."""
    if weight.split is Split.REPLICATED:
        return ranks
    if weight.units and weight.units < ranks:
        return ranks // weight.units
    return 1


@given(
    st.integers(1, 64),
    st.integers(1, 16),
    st.integers(1, 80),
)
def test_the_largest_shard_of_all_ranks_covers_the_weight_and_never_exceeds_it(
    units: int, per_unit: int, ranks: int
) -> None:
    weight = column((units * per_unit, 3), units=units)
    assert weight.elements <= ranks * local_elements(weight, ranks)
    assert local_elements(weight, ranks) <= weight.elements
    assert math.prod(weight.local_shape(ranks)) % per_unit == 0


@given(st.integers(1, 10_000), st.integers(1, 80))
def test_more_ranks_never_need_more_each(length: int, ranks: int) -> None:
    weight = column((length, 3))
    assert local_elements(weight, ranks + 1) <= local_elements(weight, ranks)

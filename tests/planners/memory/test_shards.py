import pytest

from plimsoll.planners.architecture import Block, Part, Split, Weight
from plimsoll.planners.jobs.job import BlockWeights
from plimsoll.planners.jobs.optimizers import optimizer_kind
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.memory.shards import (
    are_divisible,
    divisions,
    frozen_elements,
    have_unequal_parts,
    moment_bytes,
    padded_elements,
    shard_elements,
    split_elements,
)
from tests.planners.training_cases import job

MATRIX = Weight(name="a.weight", shape=(10, 6), part=Part.FEED_FORWARD, split=Split.COLUMN, dim=0, is_linear=True)
NORM = Weight(name="n.weight", shape=(6,), part=Part.NORM)
ROWS = Weight(name="e.weight", shape=(1000, 4), part=Part.EMBEDDING, split=Split.VOCABULARY, dim=0)
# Eight experts of 6 x 4 in one tensor, as transformers 5 holds them.
EXPERTS = Weight(
    name="x.weight", shape=(8, 6, 4), part=Part.EXPERT, split=Split.COLUMN, dim=1, experts=8, is_linear=True,
    is_fused=True,
)  # fmt: skip


def part(*weights: Weight, frozen: tuple[Weight, ...] = ()) -> BlockWeights:
    block = Block(kind="plain", weights=weights, operations=(), tensors=())
    return BlockWeights(block=block, trainable=weights, frozen=frozen)


def by(framework: str, *rows: dict[str, int]):
    """Return the divisions of layouts whose `shard_group` is what divides."""
    full = [{"zero_stage": 3, "data_parallel": row.get("shard_group", 1), **row} for row in rows]
    layouts = candidates_from_rows(full)
    return divisions(layouts, layouts.shard_group, job(framework))


@pytest.mark.parametrize("large", [4, 100_000])
def test_each_layout_is_led_to_its_way_of_dividing(large: int):
    # Whether the ways are marked in a table or, of degrees too large for one, sorted.
    found = by("fsdp2", {"shard_group": large}, {"shard_group": 2}, {"shard_group": large})
    assert [way.layout.shard_ranks for way in found.ways] == [2, large]
    assert found.inverse.tolist() == [1, 0, 1]


def test_nothing_is_held_of_experts_where_a_stack_does_not_divide_them_so():
    # Of eight experts 4 x 24 elements are on a rank of two, divided by the 2 of 4 ranks that share them; 3 share none.
    found = by("fsdp2", {"shard_group": 4, "expert_parallel": 2}, {"shard_group": 3, "expert_parallel": 2})
    assert shard_elements(part(EXPERTS), found).tolist() == [48, 0]


FOUR = {"shard_group": 4}


def test_the_tensor_split_leaves_norms_whole():
    # 10 x 6 over 2: 5 x 6 = 30, and the norm's 6.
    assert split_elements(part(MATRIX, NORM), by("fsdp2", {}, {"tensor_parallel": 2})).tolist() == [66, 36]


def test_a_flat_cut_rounds_once():
    # 66 over 4 is 16.5, so 17.
    assert shard_elements(part(MATRIX, NORM), by("reference", FOUR)).tolist() == [17]


def test_a_cut_of_the_first_dimension_rounds_every_tensor():
    # 10 rows over 4 are 3 rows of 6; 6 over 4 is 2.
    assert shard_elements(part(MATRIX, NORM), by("fsdp2", FOUR)).tolist() == [20]


def test_buffers_are_as_long_as_all_padded_parts():
    assert padded_elements(part(MATRIX, NORM), by("fsdp2", FOUR)).tolist() == [80]
    assert padded_elements(part(MATRIX, NORM), by("reference", FOUR)).tolist() == [68]


def test_more_ranks_than_rows_leave_one_row_each():
    assert shard_elements(part(MATRIX), by("fsdp2", {"shard_group": 64})).tolist() == [6]


def test_deepspeed_cuts_each_tensor_in_stage_three_and_one_buffer_before():
    # Over 4 ranks: 60 and 6 are 15 and 2 each; 66 in one buffer that ends on 2 x 4 elements is 72, 18 each.
    both = by("deepspeed", FOUR, {"shard_group": 4, "zero_stage": 2})
    assert shard_elements(part(MATRIX, NORM), both).tolist() == [17, 18]


def test_megatron_pads_the_vocabulary_as_the_sharding_table_shows_it():
    # 1,000 rows are padded to 1,024, over two ranks to 512 each.
    assert split_elements(part(ROWS), by("megatron", {}, {"tensor_parallel": 2})).tolist() == [4096, 2048]


def test_fused_experts_are_cut_between_experts():
    # 8 experts of 24 over 64 ranks: one whole expert on each of eight, 8 x N/W.
    assert shard_elements(part(EXPERTS), by("accelerate", {"shard_group": 64})).tolist() == [24]
    # The buffer they are gathered into is 64 times that.
    assert padded_elements(part(EXPERTS), by("accelerate", {"shard_group": 64})).tolist() == [64 * 24]


def test_torchtitan_cuts_experts_within_where_there_are_more_ranks():
    # Three ranks are fewer than 8 experts: three whole ones of 24. Twelve would each want half a row of six.
    some = by("fsdp2", {"shard_group": 3}, {"shard_group": 12})
    assert are_divisible(part(EXPERTS), some).tolist() == [True, False]
    assert shard_elements(part(EXPERTS), by("fsdp2", {"shard_group": 3})).tolist() == [3 * 24]


def test_expert_parallelism_leaves_fewer_shard_ranks():
    # Two of eight experts, 48 elements, over 8 / 4 = 2 ranks.
    layout = {"shard_group": 8, "expert_parallel": 4}
    assert split_elements(part(EXPERTS), by("deepspeed", layout)).tolist() == [48]
    assert shard_elements(part(EXPERTS), by("deepspeed", layout)).tolist() == [24]
    # Of three shard ranks there is no half.
    assert are_divisible(part(EXPERTS), by("deepspeed", {**layout, "shard_group": 3})).tolist() == [False]


def test_tensor_parallelism_must_cut_evenly_but_for_the_vocabulary():
    some = by("fsdp2", {"tensor_parallel": 5}, {"tensor_parallel": 4})
    assert have_unequal_parts((part(MATRIX),), some).tolist() == [False, True]
    assert have_unequal_parts((part(ROWS),), by("fsdp2", {"tensor_parallel": 3})).tolist() == [False]


def test_moments_follow_the_elements_and_count_their_steps():
    adamw = optimizer_kind("adamw")
    # Two events of 20 elements in 4 bytes, and a counter of 4 bytes for each of two tensors.
    assert moment_bytes(part(MATRIX, NORM), by("fsdp2", FOUR), adamw, 4.0).tolist() == [168]
    # Of a flat buffer no tensor keeps a counter: two events of 17.
    assert moment_bytes(part(MATRIX, NORM), by("reference", FOUR), adamw, 4.0).tolist() == [136]


def test_a_factored_moment_has_a_row_and_a_column_of_each_matrix():
    adafactor = optimizer_kind("adafactor")
    # 3 x 6 of the matrix: 3 + 6; one event of 2 of the norm: 11 in 4 bytes, and two counters.
    assert moment_bytes(part(MATRIX, NORM), by("accelerate", FOUR), adafactor, 4.0).tolist() == [52]
    # Of a flat buffer a quarter of 10 + 6, and one event of 6 / 4, so 2.
    assert moment_bytes(part(MATRIX, NORM), by("reference", FOUR), adafactor, 4.0).tolist() == [24]
    # Each of 8 / 4 experts of 6 x 4 has its own row and column: 2 x (6 + 4), and one counter.
    assert moment_bytes(part(EXPERTS), by("accelerate", FOUR), adafactor, 4.0).tolist() == [84]


def test_frozen_weights_are_counted_apart():
    assert frozen_elements(part(NORM, frozen=(MATRIX,)), by("accelerate", FOUR)).tolist() == [60]


def test_distinct_ways_spread_back_over_all_layouts():
    ways = by("reference", FOUR, {}, FOUR)
    assert len(ways.ways) == 2
    assert shard_elements(part(MATRIX), ways).tolist() == [15, 60, 15]


def test_four_real_ranks_store_what_the_formula_says():
    # Llama with V = 32,003 and f = 1,366 over 4 FSDP2 ranks, fp32: 55,874,048 bytes of parameters on every rank,
    # measured on four gloo processes.
    from plimsoll.planners.families import describe_config

    model = describe_config(
        {
            "model_type": "llama",
            "vocab_size": 32003,
            "hidden_size": 512,
            "intermediate_size": 1366,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
        },
        name="odd",
    )
    assert model.parameters == 55_856_640
    total = sum(
        4 * shard_elements(part(*block.weights), by("accelerate", FOUR))[0] * block.repeats for block in model.blocks
    )
    assert total == 55_874_048

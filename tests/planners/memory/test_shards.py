import numpy as np

from planners.architecture import Part, Split, Weight
from planners.memory.shards import divisions, padded_elements, shard_elements, split_elements

MATRIX = Weight(name="a.weight", shape=(10, 6), part=Part.FEED_FORWARD, split=Split.COLUMN, dim=0, is_linear=True)
NORM = Weight(name="n.weight", shape=(6,), part=Part.NORM)


def by(tensor_parallel: list[int], ranks: list[int]):
    return divisions(np.array(tensor_parallel), np.array(ranks))


def test_the_tensor_split_leaves_norms_whole():
    # 10 x 6 over 2: 5 x 6 = 30, and the norm's 6.
    assert split_elements([MATRIX, NORM], by([1, 2], [1, 1])).tolist() == [66, 36]


def test_a_flat_cut_rounds_once():
    # 66 over 4 is 16.5, so 17.
    assert shard_elements([MATRIX, NORM], by([1], [4]), flat=True).tolist() == [17]


def test_a_cut_of_the_first_dimension_rounds_every_tensor():
    # 10 rows over 4 are 3 rows of 6; 6 over 4 is 2.
    assert shard_elements([MATRIX, NORM], by([1], [4]), flat=False).tolist() == [20]


def test_buffers_are_as_long_as_all_padded_parts():
    assert padded_elements([MATRIX, NORM], by([1], [4]), flat=False).tolist() == [80]
    assert padded_elements([MATRIX, NORM], by([1], [4]), flat=True).tolist() == [66]


def test_more_ranks_than_rows_leave_one_row_each():
    assert shard_elements([MATRIX], by([1], [64]), flat=False).tolist() == [6]


def test_distinct_pairs_spread_back_over_all_layouts():
    pairs = by([1, 2, 1], [4, 1, 4])
    assert pairs.tensor_parallel.size == 2
    assert shard_elements([MATRIX], pairs, flat=True).tolist() == [15, 30, 15]


def test_four_real_ranks_store_what_the_formula_says():
    # Llama with V = 32,003 and f = 1,366 over 4 FSDP2 ranks, fp32: 55,874,048 bytes of parameters on every rank,
    # measured on four gloo processes.
    from planners.huggingface import describe_config

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
        4 * shard_elements(block.weights, by([1], [4]), flat=False)[0] * block.repeats for block in model.blocks
    )
    assert total == 55_874_048

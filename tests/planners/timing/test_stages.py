import dataclasses

import numpy as np
import pytest

from plimsoll.planners.timing.stages import stage_shape
from tests.planners.factories import llama
from tests.planners.timing.efficiencies import plain
from tests.planners.training_cases import job

# A layer of 4 x 2048^2 + 3 x 2048 x 8192 = 67.1e6 matrix elements, a head of 2048 x 131072 = 268.4e6: four layers.
MODEL = llama(
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=32,
    vocab_size=131072,
)


def shape(pipeline: int, policy: str) -> tuple[int, int]:
    asked = job("megatron", model=MODEL)
    stack = dataclasses.replace(plain().stack, stage_policy=policy)
    found = stage_shape(np.array([pipeline]), asked, stack)
    return int(found.most[0]), int(found.with_head[0])


@pytest.mark.parametrize(
    ("pipeline", "most", "with_head"),
    # Twenty layers' worth in all. Two stages of ten: ten layers are the share, six are left for the head.
    # Four of five: 5, 5, 5, and one with the head. Eight of 2.5: 3, 2, 3, 2, 3, 2, one with the head, nothing.
    [(1, 16, 16), (2, 10, 6), (4, 5, 1), (8, 3, 1)],
)
def test_stages_by_cost_give_the_head_s_stage_fewer_layers(pipeline: int, most: int, with_head: int):
    assert shape(pipeline, "cost") == (most, with_head)


@pytest.mark.parametrize(("pipeline", "most", "with_head"), [(1, 16, 16), (4, 4, 4), (5, 4, 3)])
def test_equal_stages_put_the_head_on_top(pipeline: int, most: int, with_head: int):
    assert shape(pipeline, "layers") == (most, with_head)

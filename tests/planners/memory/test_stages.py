import numpy as np
import pytest

from planners.memory.stages import all_stages, deciding_stages, micro_batches_in_flight, stage_layers
from tests.planners.factories import llama
from tests.planners.training_cases import one_layout


def test_layers_that_do_not_divide_go_behind_the_first_stage():
    # 10 layers on 4 stages: 2, 3, 3, 2.
    first, count = stage_layers(np.full(4, 4), np.arange(4), 10)
    assert first.tolist() == [0, 2, 5, 8]
    assert count.tolist() == [2, 3, 3, 2]


@pytest.mark.parametrize(("stage", "micro_batches", "kept"), [(0, 8, 4), (3, 8, 1), (0, 2, 2)])
def test_one_forward_one_backward_keeps_p_minus_i_micro_batches(stage: int, micro_batches: int, kept: int):
    rows = micro_batches_in_flight(np.array([4]), np.array([1]), np.array([stage]), np.array([micro_batches]))
    assert rows.tolist() == [kept]


def test_interleaving_keeps_p_minus_one_over_pv_more_on_the_first_stage():
    # p = 4, v = 2: 4 x (1 + 3 / 8) = 5.5 micro-batches' worth.
    assert micro_batches_in_flight(np.array([4]), np.array([2]), np.array([0]), np.array([8])).tolist() == [5.5]


def test_every_stage_has_its_row():
    rows = all_stages(one_layout(pipeline_parallel=4), llama(), 8)
    assert rows.layers.tolist() == [8, 8, 8, 8]
    assert rows.has_embedding.tolist() == [True, False, False, False]
    assert rows.has_head.tolist() == [False, False, False, True]


@pytest.mark.parametrize(("stages", "deciding"), [(1, [0]), (2, [0, 1]), (4, [0, 3]), (5, [0, 1, 4])])
def test_the_worst_stage_is_among_the_deciding_ones(stages: int, deciding: list[int]):
    # 32 layers on 5 stages leave two over, so the second stage has one more than the first.
    rows = deciding_stages(one_layout(pipeline_parallel=stages), llama(), 8)
    assert rows.stage.tolist() == deciding

import numpy as np
import pytest

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.timing.stages import equal_shares, pacing_stages
from tests.planners.factories import llama
from tests.planners.sharding.models import DEEPSEEK, spec
from tests.planners.training_cases import job, one_layout

# A layer of 4 x 2048^2 + 3 x 2048 x 8192 = 67.1e6 matrix elements, a head of 2048 x 131072 = 268.4e6: four layers.
MODEL = llama(
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=32,
    vocab_size=131072,
)


def pacing(pipeline: int, asked: Job) -> list[tuple[float, ...]]:
    """Return the stages that can set the pace of one pipeline: the layers of each kind, and the heads."""
    found = pacing_stages(one_layout(pipeline_parallel=pipeline), asked)
    return list(zip(*(rows.ravel().tolist() for rows in (*found.layers_of_kind, found.heads)), strict=True))


@pytest.mark.parametrize(
    ("pipeline", "stages"),
    # Twenty layers' worth in all. Two stages of ten: ten layers are the share, six are left for the head.
    # Four of five: 5, 5, 5, and one with the head. Eight of 2.5: 3, 2, 3, 2, 3, 2, one with the head, nothing.
    [(1, [(16, 1)]), (2, [(10, 0), (6, 1)]), (4, [(5, 0), (1, 1)]), (8, [(3, 0), (1, 1)])],
)
def test_stages_by_compute_give_the_head_s_stage_fewer_layers(pipeline: int, stages: list[tuple[float, float]]):
    assert pacing(pipeline, job("nanotron", model=MODEL)) == stages


# Five stages have 3, 4, 3, 3, 3 layers.
@pytest.mark.parametrize(("pipeline", "stages"), [(1, [(16, 1)]), (4, [(4, 1)]), (5, [(4, 0), (3, 1)])])
def test_equal_stages_put_the_head_on_top(pipeline: int, stages: list[tuple[float, float]]):
    assert pacing(pipeline, job(model=MODEL)) == stages


def test_a_stage_of_another_kind_of_layers_can_be_the_slowest_too():
    # Three dense layers and five with experts, two a stage: 2 dense; 1 and 1; 2 mixtures; 2 mixtures and the head,
    # which has all that the third has.
    model = spec(DEEPSEEK, num_hidden_layers=8, first_k_dense_replace=3)
    assert pacing(4, job(model=model)) == [(2, 0, 0), (1, 1, 0), (0, 2, 1)]


def test_the_slowest_is_the_one_that_takes_longest_by_its_own_layers_and_head():
    # Layers of 1 s: 10 against 6 and the head. A head of 4 s is told with the first stage, one of 5 s sets the pace.
    stages = pacing_stages(one_layout(pipeline_parallel=2), job("nanotron", model=MODEL))
    even, slower = (stages.of_slowest((np.ones(1),), np.full(1, head)) for head in (4.0, 5.0))
    assert (even.seconds[0], even.layers_of_kind[0][0], even.heads[0]) == (10, 10, 0)
    assert (slower.seconds[0], slower.layers_of_kind[0][0], slower.heads[0]) == (11, 6, 1)


def test_pipelines_of_one_list_have_each_their_slowest():
    # 5 layers are slower than one with a head of 2 s, all 16 layers and the head take 18 s.
    layouts = candidates_from_rows([{"pipeline_parallel": 4}, {}])
    slowest = pacing_stages(layouts, job("nanotron", model=MODEL)).of_slowest((np.ones(1),), np.full(1, 2.0))
    assert slowest.seconds.tolist() == [5, 18]
    assert slowest.heads.tolist() == [0, 1]


def test_no_pipeline_is_faster_than_equal_shares_of_everything():
    # (16 layers of 1 s + 4 s) / 4 stages.
    layouts, asked = one_layout(pipeline_parallel=4), job("nanotron", model=MODEL)
    shared, own = (
        stages(layouts, asked).of_slowest((np.ones(1),), np.full(1, 4.0)).seconds[0]
        for stages in (equal_shares, pacing_stages)
    )
    assert shared == own == 5

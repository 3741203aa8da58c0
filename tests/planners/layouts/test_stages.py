import numpy as np
import pytest

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.pipeline_layouts import BEHIND_FIRST, read_pipeline_layout
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.layouts.stages import (
    Pipeline,
    all_stages,
    deciding_stages,
    distinct_stages,
    micro_batches_in_flight,
)
from tests.planners.factories import llama
from tests.planners.sharding.models import DEEPSEEK, spec
from tests.planners.training_cases import job, one_layout


def pipeline(model: ModelSpec, degree: int, chunks: int = 1, way: str = BEHIND_FIRST) -> Pipeline:
    return Pipeline(ByIdentity(model), degree, chunks, read_pipeline_layout(way))


def test_layers_that_do_not_divide_go_behind_the_first_stage():
    # 10 layers on 4 stages: 2, 3, 3, 2.
    four = pipeline(llama(num_hidden_layers=10), 4)
    assert [four.span(stage) for stage in range(4)] == [(0, 1), (2, 4), (5, 7), (8, 9)]
    rows = all_stages(one_layout(pipeline_parallel=4), job(model=llama(num_hidden_layers=10)))
    assert rows.layers.ravel().tolist() == [2, 3, 3, 2]


@pytest.mark.parametrize(("stage", "micro_batches", "kept"), [(0, 8, 4), (3, 8, 1), (0, 2, 2)])
def test_one_forward_one_backward_keeps_p_minus_i_micro_batches(stage: int, micro_batches: int, kept: int):
    rows = micro_batches_in_flight(np.array([4]), np.array([1]), np.array([stage]), np.array([micro_batches]))
    assert rows.tolist() == [kept]


def test_interleaving_keeps_p_minus_one_over_pv_more_on_the_first_stage():
    # p = 4, v = 2: 4 x (1 + 3 / 8) = 5.5 micro-batches' worth.
    assert micro_batches_in_flight(np.array([4]), np.array([2]), np.array([0]), np.array([8])).tolist() == [5.5]


def test_every_stage_has_its_row():
    rows = all_stages(one_layout(pipeline_parallel=4), job())
    assert rows.layers.ravel().tolist() == [8, 8, 8, 8]
    assert rows.has_embedding.ravel().tolist() == [True, False, False, False]
    assert rows.has_head.ravel().tolist() == [False, False, False, True]


@pytest.mark.parametrize(("stages", "deciding"), [(1, [0]), (2, [0, 1]), (4, [0, 3]), (5, [0, 1, 4])])
def test_the_worst_stage_is_among_the_deciding_ones(stages: int, deciding: list[int]):
    # 32 layers on 5 stages leave two over, so the second stage has one more than the first.
    rows = deciding_stages(one_layout(pipeline_parallel=stages), job())
    assert rows.stage.ravel().tolist() == deciding


def test_a_stage_of_heavier_layers_between_the_ends_decides_too():
    # One dense layer and 26 with experts, one a stage: the first of those with experts keeps the most micro-batches.
    listed = catalogue().model("deepseek-ai/DeepSeek-V2-Lite")
    model = describe_config(listed.config, name=listed.id)
    rows = deciding_stages(one_layout(pipeline_parallel=27), job(model=model))
    assert rows.stage.ravel().tolist() == [0, 1, 26]


def test_shorter_pipelines_repeat_their_first_stage():
    rows = deciding_stages(candidates_from_rows([{"pipeline_parallel": degree} for degree in (1, 2, 5)]), job())
    assert rows.stage.T.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 4]]


# The Ultra-Scale runs' 1.34B model: a head as much as 4 of its 16 layers, 5 blocks' worth on each of 4 stages.
NANOTRON_MODEL = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 8192,
    "vocab_size": 131072,
    "tie_word_embeddings": True,
}


def test_only_first_and_head_s_stage_decide_where_blocks_are_dealt_out():
    rows = deciding_stages(one_layout(pipeline_parallel=4), job("nanotron", model=llama(**NANOTRON_MODEL)))
    assert rows.stage.ravel().tolist() == [0, 3]
    assert rows.has_head.ravel().tolist() == [False, True]
    assert rows.layers.ravel().tolist() == [5, 1]


def test_one_stage_has_everything_where_blocks_are_dealt_out():
    rows = all_stages(one_layout(), job("nanotron", model=llama(**NANOTRON_MODEL)))
    assert (rows.layers.ravel().tolist(), rows.has_head.ravel().tolist()) == ([16], [True])


@pytest.mark.parametrize("stage", [0, 3])
def test_gpipe_keeps_every_micro_batch_on_every_stage(stage: int):
    # All forward passes come first (Huang et al. 2019): eight micro-batches, whatever the stage.
    rows = micro_batches_in_flight(np.array([4]), np.array([1]), np.array([stage]), np.array([8]), schedule="gpipe")
    assert rows.tolist() == [8]


def test_gpipe_on_one_stage_keeps_one_micro_batch():
    rows = micro_batches_in_flight(np.array([1]), np.array([1]), np.array([0]), np.array([8]), schedule="gpipe")
    assert rows.tolist() == [1]


def eight_layers(*, dense: int):
    """Return a DeepSeek of eight layers, those after the first `dense` ones with experts."""
    return spec(DEEPSEEK, num_hidden_layers=8, first_k_dense_replace=dense)


def kinds_on_stages(model, **degrees: int) -> list[list[int]]:
    rows = all_stages(one_layout(**degrees), job(model=model))
    return [counts.ravel().tolist() for counts in rows.layers_of_kind]


# 8 layers on 2 stages in 2 chunks: stage 0 has layers 0, 1, 4 and 5, stage 1 has 2, 3, 6 and 7. As one run each they
# would have 0 to 3 and 4 to 7, and stage 0 all three dense layers.
@pytest.mark.parametrize(
    ("dense", "dense_layers", "mixtures"), [(1, [1, 0], [3, 4]), (2, [2, 0], [2, 4]), (3, [2, 1], [2, 3])]
)
def test_an_interleaved_stage_has_the_kinds_of_the_layers_of_its_chunks(
    dense: int, dense_layers: list[int], mixtures: list[int]
):
    model = eight_layers(dense=dense)
    assert kinds_on_stages(model, pipeline_parallel=2, virtual_pipeline=2) == [dense_layers, mixtures]


def test_one_chunk_a_stage_is_one_run_of_layers():
    # Layers 0 to 3 and 4 to 7, three of the first four dense.
    assert kinds_on_stages(eight_layers(dense=3), pipeline_parallel=2) == [[3, 0], [1, 4]]


def test_chunks_go_through_all_stages_in_turn():
    model = eight_layers(dense=2)
    assert pipeline(model, 2, 2).held(0) == (range(2), range(4, 6))
    assert pipeline(model, 2, 2).held(1) == (range(2, 4), range(6, 8))
    assert [list(chunk) for chunk in pipeline(model, 2, 4).held(1)] == [[1], [3], [5], [7]]


@pytest.mark.parametrize(("stages", "chunks"), [(1, 1), (3, 1), (2, 2), (2, 4), (4, 2)])
def test_every_layer_is_in_one_chunk_of_one_stage(stages: int, chunks: int):
    whole = pipeline(eight_layers(dense=2), stages, chunks)
    held = [layer for stage in range(stages) for run in whole.held(stage) for layer in run]
    assert sorted(held) == list(range(8))


def test_layouts_of_one_list_have_their_own_chunks():
    # 2 stages, 2 x 2 chunks, 4 stages: three dense layers are on the first run of four, as 2 + 1, and as 2 + 1.
    rows = [{"pipeline_parallel": 2}, {"pipeline_parallel": 2, "virtual_pipeline": 2}, {"pipeline_parallel": 4}]
    stages = all_stages(candidates_from_rows(rows), job(model=eight_layers(dense=3)))
    assert stages.layers_of_kind[0].T.tolist() == [[3, 0, 0, 0], [2, 1, 1, 1], [2, 1, 0, 0]]
    assert stages.layers.T.tolist() == [[4, 4, 4, 4], [4, 4, 4, 4], [2, 2, 2, 2]]
    assert stages.has_head.T.tolist() == [[False, *[True] * 3], [False, *[True] * 3], [False, False, False, True]]


def test_an_interleaved_stage_of_heavier_layers_decides_too():
    # 8 chunks of one layer on 4 stages: 0 and 4, 1 and 5, 2 and 6, 3 and 7. With layers 0 to 2 dense, stages 0 to 2
    # have a dense layer and a mixture each, and stage 3 is the first with two mixtures; in runs of two, stage 2 was.
    layout = one_layout(pipeline_parallel=4, virtual_pipeline=2)
    assert deciding_stages(layout, job(model=eight_layers(dense=3))).stage.ravel().tolist() == [0, 3]
    # With two dense layers stage 2, of layers 2 and 6, is.
    assert deciding_stages(layout, job(model=eight_layers(dense=2))).stage.ravel().tolist() == [0, 2, 3]


def test_interleaving_leaves_embedding_and_head_on_the_ends():
    rows = all_stages(one_layout(pipeline_parallel=4, virtual_pipeline=2), job())
    assert rows.has_embedding.ravel().tolist() == [True, False, False, False]
    assert rows.has_head.ravel().tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("dense", "chunks", "distinct"),
    [
        # Stages of two layers: embedding and dense ones, mixtures, and those with the head.
        (2, 1, [0, 1, 3]),
        # One dense layer and one mixture make the second stage unlike the third.
        (3, 1, [0, 1, 2, 3]),
        # Four dense layers: the third stage is the first of mixtures alone.
        (4, 1, [0, 1, 2, 3]),
        # Layers i and i + 4: the dense ones are on the first two stages, and the third has two mixtures.
        (2, 2, [0, 1, 2, 3]),
    ],
)
def test_stages_are_told_apart_by_their_kinds_of_layers_and_their_ends(dense, chunks, distinct):
    assert list(distinct_stages(pipeline(eight_layers(dense=dense), 4, chunks))) == distinct

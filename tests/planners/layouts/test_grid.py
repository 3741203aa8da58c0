import math
from dataclasses import replace

import numpy as np

from plimsoll.planners.layouts import grid as grids
from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL
from plimsoll.planners.layouts.grid import FEW_CELLS, Cells, counted
from plimsoll.planners.search.axes import candidate_grid
from tests.planners.factories import question, small_llama
from tests.planners.training_cases import job


def grid(framework: str = "fsdp2", **changes):
    return candidate_grid(question(framework=framework, **changes), job(framework, **changes), np.array([8]))


def test_a_mask_counts_for_every_cell_it_is_spread_over():
    # Two of three meshes, each for four micro-batch sizes.
    assert counted(np.array([True, False, True]), (4, 3)) == 8
    assert counted(np.zeros(3, dtype=bool), (4, 3)) == 0
    assert counted(np.ones((1, 0), dtype=bool), (4, 0)) == 0


def test_cells_find_their_values_along_the_axes_that_vary():
    cells = Cells(np.array([0, 5, 7]), (2, 4))
    assert cells.of(np.array([10, 11, 12, 13])).tolist() == [10, 11, 13]
    assert cells.of(np.array([[1], [2]])).tolist() == [1, 2, 2]
    assert cells.of(np.array([9])).tolist() == [9, 9, 9]
    assert cells.of(np.arange(8).reshape(2, 4)).tolist() == [0, 5, 7]


def test_a_grid_without_bases_lists_nothing():
    nowhere = Cells(np.array([], dtype=np.int64), (2, 0))
    assert nowhere.of(np.array([])).tolist() == []
    assert nowhere.of(np.zeros((2, 0))).tolist() == []


def test_some_bases_are_the_same_layouts_as_those_cells_of_the_whole():
    whole = grid()
    some = whole.of_bases(np.array([3, 1]))
    assert some.bases == 2
    cell = np.array([0])
    assert some.take(cell).tensor_parallel == whole.take(cell + 3).tensor_parallel
    assert some.take(cell + 1).tensor_parallel == whole.take(cell + 1).tensor_parallel


def test_what_is_known_of_layouts_stays_with_those_that_are_left(monkeypatch):
    # However few are left out.
    monkeypatch.setattr(grids, "FEW_CELLS", 0)
    whole = grid()
    degrees = np.broadcast_to(whole.layouts.tensor_parallel, whole.shape)
    known = replace(whole, distinct=whole.distinct & (degrees == 2), known={"degree": whole.layouts.tensor_parallel})
    for some in (known.smallest(), known.smallest().of_bases(np.array([1, 0]))):
        assert some.bases < whole.bases
        assert (some.known["degree"] == 2).all()


def test_the_smallest_part_of_a_grid_without_gaps_is_the_grid():
    whole = grid().smallest()
    assert whole.smallest() is whole


def test_a_grid_stays_what_it_is_where_little_could_be_left_out():
    whole = grid().smallest()
    first = np.arange(whole.bases) > 0
    assert whole.bases > 1
    assert math.prod(whole.shape[:-1]) < FEW_CELLS
    nearly_all = replace(whole, distinct=whole.distinct & first)
    assert nearly_all.smallest() is nearly_all
    assert nearly_all.of_bases(np.arange(whole.bases)) is nearly_all


def test_a_list_has_one_mesh_after_the_other_and_small_micro_batches_first():
    listed = grid().every()
    same_mesh = listed.take(np.flatnonzero(listed.tensor_parallel == listed.tensor_parallel[0])[:20])
    assert len(listed) == len(grid())
    assert (np.diff(same_mesh.micro_batch_size[:12]) >= 0).all()


def test_recomputing_every_layer_of_even_stages_stands_once():
    # Four layers on one stage: 1, 2 and 3 of them, and all.
    listed = grid("megatron", model=small_llama(), layout={"pipeline_parallel": 1}).every()
    limits = set(listed.full_layers[listed.recompute == FULL].tolist())
    assert limits == {1, 2, 3, ALL_LAYERS}


def test_stage_zero_has_no_smaller_shard_groups():
    listed = grid("accelerate", gpus=8).every()
    unsharded = listed.take(listed.zero_stage == 0)
    assert len(unsharded) > 0
    assert (unsharded.shard_group == unsharded.data_parallel).all()

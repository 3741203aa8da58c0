from dataclasses import replace

import numpy as np
import pytest

from plimsoll.planners.ground.hardware import GpuCount
from plimsoll.planners.layouts.candidates import COLUMNS, FULL
from plimsoll.planners.questions import Companion, Overlap, Recompute
from plimsoll.planners.search.axes import candidate_grid, choices_of, grid_over
from plimsoll.planners.search.bases import every_mesh, only, with_micro_batches, with_shard_groups, with_stages
from plimsoll.planners.search.beyond import beyond_usual, with_every_number_of_layers
from plimsoll.planners.search.gpu_counts import gpu_counts, usual_counts
from tests.planners.factories import question, small_llama, small_mixtral
from tests.planners.training_cases import job


def layouts(framework: str = "fsdp2", **changes):
    asked = question(framework=framework, **changes)
    return candidate_grid(asked, job(framework, **changes), np.array([8])).every()


def test_degrees_always_multiply_to_the_gpus():
    assert set(layouts().gpus.tolist()) == {8}


def test_fixed_values_are_kept():
    found = layouts(
        micro_batch_size=2, recompute=Recompute(mode="full"), layout={"tensor_parallel": 2, "zero_stage": 3}
    )
    assert set(found.micro_batch_size.tolist()) == {2}
    assert set(found.recompute.tolist()) == {2}
    assert set(found.tensor_parallel.tolist()) == {2}
    assert set(found.zero_stage.tolist()) == {3}


def test_no_layout_stands_twice():
    found = layouts("reference")
    columns = np.stack([getattr(found, name) for name in COLUMNS])
    assert np.unique(columns, axis=1).shape[1] == len(found)


def test_offload_nobody_asked_for_is_not_usual():
    assert set(layouts("deepspeed").offload.tolist()) == {0}
    assert set(layouts("deepspeed", layout={"offload": "optimizer"}).offload.tolist()) == {1}


def test_selective_recompute_is_left_out_where_it_gains_nothing():
    assert 1 not in layouts("megatron").recompute.tolist()
    assert 1 in layouts("megatron", attention="eager").recompute.tolist()


def test_a_fused_loss_that_no_patch_has_is_left_out_unless_it_is_asked_for():
    # Liger-Kernel 0.8.5 has none for StarCoder 2.
    other = replace(small_llama(), model_type="starcoder2")
    assert set(layouts("accelerate", model=other).fused_cross_entropy.tolist()) == {False}
    assert set(layouts("accelerate", model=other, fused_cross_entropy=True).fused_cross_entropy.tolist()) == {True}


def test_a_fused_loss_is_left_out_beside_a_reference_unless_it_is_asked_for():
    beside = {"companions": (Companion(role="reference"),)}
    assert set(layouts("accelerate").fused_cross_entropy.tolist()) == {False, True}
    assert set(layouts("accelerate", **beside).fused_cross_entropy.tolist()) == {False}
    assert set(layouts("accelerate", fused_cross_entropy=True, **beside).fused_cross_entropy.tolist()) == {True}


def test_a_fixed_number_of_gpus_is_one_batch():
    assert [batch.tolist() for batch in gpu_counts(question(gpus=8))] == [[8]]


def test_a_range_of_few_gpus_has_every_count():
    assert [batch.tolist() for batch in gpu_counts(question(gpus=(6, 32)))] == [list(range(6, 33))]


def test_a_range_beside_fixed_degrees_has_the_multiples_of_their_product_and_its_ends():
    (batch,) = gpu_counts(question(gpus=(4, 30), layout={"tensor_parallel": 4, "pipeline_parallel": 3}))
    assert batch.tolist() == [4, 12, 24, 30]


def test_where_no_multiple_lies_in_an_open_range_its_ends_are_looked_at():
    # Three stages of eight tensor-parallel ranks need 24 or 48 GPUs.
    count = GpuCount(minimum=25, maximum=40, is_free=True)
    asked = question(layout={"tensor_parallel": 8, "pipeline_parallel": 3})
    asked = replace(asked, hardware=replace(asked.hardware, gpus=count))
    assert np.concatenate(gpu_counts(asked)).tolist() == [25, 40]


def test_a_long_range_is_thinned_to_powers_of_two_and_its_ends():
    (batch,) = gpu_counts(question(gpus=(8, 1000)))
    assert batch.tolist() == [*range(8, 65), 128, 256, 512, 1000]


def test_a_range_of_64_nodes_has_every_one_of_them():
    (batch,) = gpu_counts(question(gpus=(16, 512)))
    assert batch.tolist() == [*range(16, 65), *range(72, 513, 8)]


def test_usual_layouts_are_looked_at_on_sixteen_counts_of_a_range():
    some = usual_counts(np.arange(1, 65) * 8).tolist()
    assert (len(some), some[0], some[-1]) == (16, 8, 512)
    assert usual_counts(np.array([8, 24])).tolist() == [8, 24]


def test_the_fewest_gpus_are_looked_for_in_growing_batches():
    batches = gpu_counts(question(gpus=None))
    assert batches[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [batch.tolist() for batch in batches[1:4]] == [[16], [24, 32], [40, 48, 56, 64]]
    # From 16 nodes on eight counts an octave: 18, 20, 22 ... nodes.
    assert batches[5].tolist() == [144, 160, 176, 192, 208, 224, 240, 256]


def test_usual_shard_groups_are_all_replicas_and_those_of_a_node():
    asked = question(framework="fsdp2", gpus=64, layout={"tensor_parallel": 1, "pipeline_parallel": 1})
    listed = candidate_grid(asked, job("fsdp2"), np.array([64])).every()
    without_context = listed.take(listed.context_parallel == 1)
    assert set(without_context.shard_group.tolist()) == {8, 64}


def test_micro_batches_divide_the_global_batch():
    assert set(layouts(global_batch_size=48).micro_batch_size.tolist()) == {1, 2, 3, 4, 6, 8, 12, 16, 24, 48}
    assert set(layouts(global_batch_size=7).micro_batch_size.tolist()) == {1}


@pytest.mark.parametrize(("every", "recomputed"), [(1, {32, 16}), (3, {10, 5}), (20, {1, 0})])
def test_every_so_manieth_layer_is_counted_in_each_stage(every: int, recomputed: set[int]):
    # 32 layers in one stage or 16 in each of two.
    changes = {"gpus": 2, "recompute": Recompute(mode="full", every=every)}
    asked = question(framework="reference", **changes)
    listed = candidate_grid(asked, job("reference", **changes), np.array([2])).every()
    assert set(listed.full_layers.tolist()) == recomputed


def test_of_numbers_of_layers_a_stage_recomputes_those_that_it_has_more_of():
    # 32 layers in one stage, or two in each of 16, of which one may be recomputed and not the other.
    asked = question(framework="megatron", gpus=16)
    own = job("megatron", gpus=16)
    bases = with_stages(with_micro_batches(every_mesh(asked, own, np.array([16])), asked), asked, own)
    choices = replace(choices_of(asked, own), recompute=(), full_layers=(1, 2, 3))
    listed = grid_over(asked, own, with_shard_groups(bases, asked, own), choices).every()
    assert set(listed.recompute.tolist()) == {FULL}
    for degree, counts in ((1, {1, 2, 3}), (16, {1})):
        is_even = (listed.pipeline_parallel == degree) & (listed.pipeline_layout == 0)
        assert set(listed.full_layers[is_even].tolist()) == counts


def test_of_unequal_stages_all_but_one_layer_of_the_longest_are_a_choice():
    # Ten layers: 3 and 3 and 2 and 2, of which two may be recomputed; or 4, 2, 2, 2, of which three may.
    model = small_llama(num_hidden_layers=10)
    for way, counts in (("Ett|tt|tt|ttttL", {1, 2, 3}), ("Ettt|ttt|tt|ttL", {1, 2})):
        asked = {"gpus": 4, "model": model, "layout": {"pipeline_parallel": 4, "pipeline_layout": way}}
        own = job("megatron", **asked)
        beyond = beyond_usual(question(framework="megatron", **asked), own, np.array([4]), with_offload=False)
        bases = with_stages(with_micro_batches(beyond.meshes, beyond.question), beyond.question, own)
        found = [
            grid_over(turn.question, own, with_shard_groups(only(bases, index), turn.question, own), turn.choices)
            for turn, index in with_every_number_of_layers(beyond, bases)
        ]
        assert {number for grid in found for number in grid.every().full_layers.tolist()} == counts


def mixture_layouts(**changes):
    return layouts("megatron", model=small_mixtral(), **changes)


def test_the_exchange_with_experts_is_hidden_where_there_are_passes_to_pair():
    found = mixture_layouts()
    hidden = found.take(found.expert_overlap)
    assert len(hidden) > 0
    assert hidden.expert_parallel.min() > 1
    assert ((hidden.pipeline_parallel == 1) | (hidden.virtual_pipeline > 1)).all()
    assert FULL not in hidden.recompute
    # Each stands beside the same layout without it.
    assert len(found) > 2 * len(hidden)


def test_only_what_was_asked_of_the_exchange_with_experts_is_tried():
    for wanted in (False, True):
        found = mixture_layouts(layout={"overlap": Overlap(expert_parallel=wanted)})
        assert set(found.expert_overlap.tolist()) == {wanted}


@pytest.mark.parametrize("changes", [{"precision": "fp32"}, {"recompute": Recompute(mode="full")}])
def test_an_exchange_that_cannot_be_hidden_is_not_tried_so(changes):
    assert not mixture_layouts(**changes).expert_overlap.any()


def test_layouts_without_experts_have_nothing_of_the_kind():
    assert not layouts("megatron").expert_overlap.any()

"""Events of the backward pass, worked out for Llamas whose lengths divide by all degrees."""

import pytest

from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.layouts.stages import all_stages
from plimsoll.planners.memory.activity import activity
from plimsoll.planners.memory.backward import backward_items
from plimsoll.planners.memory.holdings import holdings
from plimsoll.planners.memory.items import PHASES
from plimsoll.planners.memory.step_context import step_context
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import question, small_llama, small_mixtral
from tests.planners.training_cases import at_event, of_layer

TOP = 3  # of four layers, counted from the lowest
# A layer's matrices and norms; embedding; head and last norm (`test_forward.py`).
LAYER, EMBEDDING, HEAD = 36_992, 64_000, 64_064


def events(framework, *, tokens=32, batch=2, gpus=2, layout=None, training=None, **changes):
    asked = question(
        model=small_llama(**changes), sequence_length=tokens, global_batch_size=batch, gpus=gpus, **(training or {})
    )
    job = training_job(asked, load_profile(framework))
    layouts = candidates_from_rows([{"data_parallel": 2, "zero_stage": 3, **(layout or {})}])
    rows = all_stages(layouts, job.model, batch)
    held, active = holdings(layouts, rows, job), activity(layouts, rows, job)
    return list(backward_items(step_context(layouts, rows, job, held, active)))


def root_reduction(found):
    """Return the one event at which the root's gradients are reduced, or the first unit's of a pipeline."""
    (reduction,) = (items for items in found if PHASES[items.phase] == "root gradient reduction")
    return reduction


def test_of_few_tokens_a_layer_ends_with_all_its_gradients_and_its_first_norm():
    # Top layer, nothing above it: the head's gradient 2 x 64,000 and the layer's 2 x 36,992 are not reduced yet.
    layers = at_event(events("accelerate", tokens=8), "layer")
    assert of_layer(layers, TOP, "gradients") == 2 * EMBEDDING + 2 * LAYER
    # Three layers below keep 16 x 64 + 4 x 64 + 4 x 32 + 8 x 128 bytes a token, 2 fp32 statistics and 4 heads'; the
    # norm has its input, five products of 4 bytes and the residual's gradient of 2; cosines and sines 2 x 2 x 16.
    kept = 16 * 64 + 4 * 64 + 4 * 32 + 8 * 128 + 2 * 4 + 4 * 4
    assert of_layer(layers, TOP, "activations") == 8 * (3 * kept + 26 * 64 + 64)


def test_of_more_tokens_its_second_norm_is_worse():
    layers = at_event(events("accelerate", tokens=32), "layer")
    # The feed-forward's three matrices, 64 x 128 each; behind it the attention alone is kept: its norm 6 x 64 and a
    # statistic, its input, query and context 2 x 64 each, key and value 2 x 32 each, four heads' statistics.
    assert of_layer(layers, TOP, "gradients") == 2 * EMBEDDING + 2 * 3 * 64 * 128
    kept = 16 * 64 + 4 * 64 + 4 * 32 + 8 * 128 + 2 * 4 + 4 * 4
    attention = 6 * 64 + 4 + 3 * 2 * 64 + 2 * 2 * 32 + 4 * 4
    assert of_layer(layers, TOP, "activations") == 32 * (3 * kept + attention + 26 * 64 + 64)


def test_of_many_tokens_its_last_matrix_is_worse():
    # One matrix's gradient, 2 x 64 x 128, in place of the whole layer's.
    layers = at_event(events("accelerate", tokens=1024), "layer")
    assert of_layer(layers, TOP, "gradients") == 2 * EMBEDDING + 2 * 64 * 128


def test_a_gradient_that_waits_on_the_host_is_on_the_device_while_it_is_reduced():
    found = events("fsdp2", layout={"shard_group": 2, "offload": 2})
    # The head's in 16 bits and the shard that its reduction makes of it, 4 bytes over 2 ranks; the embedding's shard.
    assert at_event(found, "head reduced").gradients.item() == 2 * HEAD + 4 * HEAD / 2
    assert root_reduction(found).gradients.item() == 4 * EMBEDDING / 2


def test_dtensor_makes_the_gradient_of_a_split_embedding_whole():
    found = events("fsdp2", gpus=4, layout={"tensor_parallel": 2, "sequence_parallel": True})
    split = at_event(found, "embedding gradient cut")
    # A rank's matrices halve, the norms of 128 (and the last one's 64) do not: layers (36,864 / 2 + 128) and head
    # 32,000 + 64, in shards of 4 bytes over 2 ranks; the whole embedding 2 x 64,000.
    assert split.gradients.item() == 4 * (4 * (18_432 + 128) + 32_064) / 2 + 2 * EMBEDDING
    # The gathered half of it, the half that is made of its gradient, and the lowest layer's gradient in fp32.
    assert split.communication.item() == 2 * 32_000 + 2 * 32_000 + 4 * (18_432 + 128)


def test_without_tensor_parallelism_there_is_no_such_moment():
    assert "embedding gradient cut" not in {items.event for items in events("fsdp2")}


def test_a_pipeline_has_no_shards_of_gradients_before_its_last_pass():
    pipeline = {"pipeline_parallel": 2}
    layers = at_event(events("fsdp2", tokens=8, batch=8, gpus=4, layout=pipeline), "layer")
    # First of two stages, its second layer: one layer's gradient in 16 bits, and 4 bytes of all that it sums.
    assert of_layer(layers, 1, "gradients") == 2 * LAYER
    assert of_layer(layers, 1, "communication") == 2 * (2 * LAYER + EMBEDDING) + 4 * (2 * LAYER + EMBEDDING)


def test_a_pipeline_reduces_its_first_unit_beside_all_summed_gradients():
    reduction = root_reduction(events("fsdp2", batch=8, gpus=4, layout={"pipeline_parallel": 2}))
    # The embedding: its weights are gone, its gradient is summed, copied for the reduction, and then half of it stays.
    assert reduction.communication[0].item() == 2 * 2 * LAYER + 4 * (2 * LAYER + EMBEDDING) + 4 * EMBEDDING
    assert reduction.gradients[0].item() == 4 * EMBEDDING / 2


def mixture_events(model=None, **layout):
    asked = question(model=model or small_mixtral(), sequence_length=32, global_batch_size=4, gpus=4)
    job = training_job(asked, load_profile("fsdp2"))
    layouts = candidates_from_rows([{"data_parallel": 4, "shard_group": 4, "zero_stage": 3, **layout}])
    rows = all_stages(layouts, job.model, 4)
    held, active = holdings(layouts, rows, job), activity(layouts, rows, job)
    return list(backward_items(step_context(layouts, rows, job, held, active)))


# Four experts of 3 x 64 x 128; queries to output 64 x (64 + 32 + 32 + 64), a router of 4 x 64 and two norms.
EXPERTS, BESIDE = 4 * 24_576, 12_288 + 256 + 128


def test_gradients_of_all_experts_stand_together():
    # The top layer, with nothing above: its experts' gradients in 16 bits, and the head's shard of four.
    assert of_layer(at_event(mixture_events(), "layer"), 1, "gradients") == 2 * EXPERTS + 4 * HEAD / 4


def test_experts_that_others_do_not_have_are_reduced_before_the_layer_they_are_in():
    found = mixture_events(expert_parallel=2)
    # Half of the experts on a rank, over two ranks. The lowest layer: its own weights, the embedding ahead, and the
    # buffer of what the layer above has beside its experts.
    lowest = of_layer(at_event(found, "layer"), 0, "communication")
    assert lowest == 2 * (EXPERTS // 2 + BESIDE) + 2 * EMBEDDING + 4 * BESIDE
    # As the top layer's experts are copied out of their buffer the next layer is gathered ahead, the head reduced.
    whole = EXPERTS // 2 + BESIDE
    copied = of_layer(at_event(found, "experts copied out"), 1, "communication")
    assert copied == 2 * whole + 2 * whole + 2 * EXPERTS // 2 + 4 * HEAD
    # Then its experts' weights are gone, and their buffer is there.
    reduced = of_layer(at_event(found, "experts reduced"), 0, "communication")
    assert reduced == 2 * BESIDE + 2 * EMBEDDING + 4 * EXPERTS // 2


def test_a_root_s_shard_is_made_once_its_whole_gradients_are_let_go_of():
    root = root_reduction(events("accelerate"))
    # Whole in 16 bits and in the buffer of 4 bytes; of the layers the shards, 4 bytes over 2 ranks.
    assert root.communication.item() == (2 + 4) * (EMBEDDING + HEAD)
    assert root.gradients.item() == 4 * 4 * LAYER / 2


def beside_shared():
    """Return a mixture like `small_mixtral`, with an expert of 128 features beside those that are chosen."""
    sizes = {"moe_intermediate_size": 128, "shared_expert_intermediate_size": 128, "num_experts": 4}
    return small_mixtral(model_type="qwen2_moe", **sizes)


@pytest.mark.parametrize(("recompute", "ranks", "is_held"), [(2, 2, True), (0, 2, False), (2, 4, False)])
def test_experts_that_a_second_run_gathers_leave_their_buffer_where_several_ranks_share_them(recompute, ranks, is_held):
    again = at_event(mixture_events(beside_shared(), expert_parallel=ranks, recompute=recompute), "experts run again")
    # Both layers' weights, the buffer of half of the experts over two ranks, and the head that is reduced. Beside the
    # experts are the shared one, 3 x 64 x 128, the biases of query, key and value, and a score of one row, of which a
    # buffer over four ranks has four.
    whole = EXPERTS // 2 + BESIDE + 24_576 + 64 + 32 + 32 + 64
    expected = 2 * whole + 2 * (whole + 3 * 64) + 2 * EXPERTS // 2 + 4 * HEAD
    assert of_layer(again, 1, "communication") == (expected if is_held else 0)


def test_without_a_shared_expert_a_second_run_finds_its_experts_gathered():
    again = at_event(mixture_events(expert_parallel=2, recompute=2), "experts run again")
    assert of_layer(again, 1, "communication") == 0


def test_of_few_tokens_the_first_of_a_feed_forward_s_matrices_is_cast_to_fp8_beside_the_others_gradients():
    fp8 = {"precision": "fp8-mixed"}
    plain, cast = (at_event(events("fsdp2", tokens=8, training=training), "layer") for training in (None, fp8))
    # Beside the head's shard, 4 bytes over 2 ranks, two of three matrices of 64 x 128 in 16 bits. The third is scaled
    # and clamped in fp32, and there in fp8.
    assert of_layer(cast, TOP, "gradients") == 4 * HEAD / 2 + 2 * 2 * 64 * 128
    assert of_layer(cast, TOP, "activations") > of_layer(plain, TOP, "activations") + (4 + 4) * 64 * 128

"""FSDP's step of small Llamas over two ranks; every length divides by all degrees, so that nothing is padded.

A layer has 36,992 parameters in matrices and norms, embedding and head 64,000 each, the last norm 64.
"""

import pytest

from plimsoll.planners.memory.steps.step import BACKWARD, FORWARD, REDUCTION
from tests.planners.factories import small_llama
from tests.planners.sharding.models import DEEPSEEK, spec
from tests.planners.training_cases import events, held, taken

LAYERS, LAYER, EMBEDDING, NORM = 4, 36_992, 64_000, 64
HEAD, ROOT = EMBEDDING + NORM, 2 * EMBEDDING + NORM
TOKENS, WORDS, TOP = 32, 1000, 3


def step(framework, *, tokens=TOKENS, layout=None, batch=2, gpus=2, stage=0, training=None, **changes):
    return events(
        framework,
        stage=stage,
        model=small_llama(**changes),
        sequence_length=tokens,
        global_batch_size=batch,
        gpus=gpus,
        layout={"data_parallel": 2, "zero_stage": 3, **(layout or {})},
        **(training or {}),
    )


def worst_of(found, layer, phase=BACKWARD):
    """Return a layer's worst event in a phase before it is reduced."""
    of_layer = [event for event in found if (event.layer, event.phase) == (layer, phase)]
    ends = [place for place, event in enumerate(of_layer) if event.name == "layer's gradients"]
    return max(of_layer[: min(ends, default=None)], key=lambda event: event.total)


TUNE = {"training": {"precision": "bf16"}}  # torchtune has no mixed precision


def test_the_last_layer_s_gather_meets_the_buffer_of_the_layer_before():
    gathered = taken(step("torchtune", **TUNE), "weights", layer=TOP, phase=FORWARD)
    # The root, one layer's weights and two layers' buffers, 2 bytes each.
    assert held(gathered, "communication") == 2 * (ROOT + 3 * LAYER)


def test_the_first_layer_s_gather_meets_the_root_s_buffer():
    first = taken(step("torchtune", **TUNE), "weights", layer=0, phase=FORWARD)
    # The root and one layer, buffer and weights each; of activations the embedding's output, 64 features of 2 bytes.
    assert held(first, "communication") == 2 * 2 * (ROOT + LAYER)
    assert held(first, "activations") == TOKENS * 2 * 64


def test_units_for_the_vocabulary_are_not_gathered_with_the_last_layer():
    last = taken(step("fsdp2"), "weights", layer=TOP, phase=FORWARD)
    assert held(last, "communication") == 2 * 3 * LAYER


def test_a_loss_behind_the_root_gathers_it_again_beside_its_gradient():
    again = taken(step("torchtune", **TUNE), "weights", phase=BACKWARD)
    assert held(again, "communication") == 2 * 2 * ROOT
    # The gradient of all logits, in the format that they were in.
    assert held(again, "logits") == 2 * TOKENS * WORDS


def test_before_torch_2_8_the_root_stayed_gathered_for_the_loss():
    found = step("torchtune", training={"precision": "bf16", "framework_version": "0.5"})
    loss = taken(found, "logits", phase=FORWARD)
    # The root, and the last layer's buffer.
    assert held(loss, "communication") == 2 * (ROOT + LAYER)
    behind = taken(found, "head's gradient", phase=BACKWARD)
    assert held(behind, "communication") == 2 * (ROOT + LAYER)


def test_fsdp1_has_views_of_its_buffers_and_keeps_the_root():
    loss = taken(step("accelerate", training={"kernels": "eager"}), "logits")
    assert held(loss, "communication") == 2 * (ROOT + LAYER)


def test_a_loss_inside_the_model_meets_the_head_s_buffer_too():
    loss = taken(step("accelerate"), "logits", phase=FORWARD)
    assert held(loss, "communication") == 2 * 2 * HEAD


def test_a_model_holds_what_a_frozen_head_has_not_saved_until_the_loss_is_known():
    seen = taken(step("accelerate", training={"method": "lora"}), "input of a frozen head")
    # 32 tokens of 64 features in 16 bits.
    assert (seen.phase, seen.change) == (FORWARD, TOKENS * 64 * 2)
    # The frozen head and norm are a unit as those that learn are.
    assert held(seen, "communication") == 2 * 2 * HEAD


def test_a_table_behind_the_norm_in_one_unit_outlives_the_copy_into_its_buffer():
    found = step("accelerate", batch=4, tie_word_embeddings=True)
    shard = next(e for e in found if e.name == "outputs of reductions" and e.layer is None and e.change > 0)
    # Shards of the micro-batch before, of all in fp32; the table's gradient in 16 bits, and half of the unit reduced.
    everything = LAYERS * LAYER + EMBEDDING + NORM
    assert held(shard, "gradients") == 4 * everything / 2 + 2 * EMBEDDING + 2 * (EMBEDDING + NORM) / 2


@pytest.mark.parametrize("tied", [False, True])
def test_a_loss_outside_the_model_meets_the_head_alone(tied):
    # A tied head's unit is the root: one matrix and the last norm.
    loss = taken(step("fsdp2", tie_word_embeddings=tied), "logits")
    assert held(loss, "communication") == 2 * HEAD


def test_of_few_tokens_a_layer_ends_with_all_its_gradients_and_its_first_norm():
    norm = worst_of(step("accelerate", tokens=8), TOP)
    # Top layer, nothing above it: half of the head's gradient in fp32, and the layer's 2 x 36,992, not reduced yet.
    assert (norm.name, held(norm, "gradients")) == ("first norm", 4 * HEAD / 2 + 2 * LAYER)
    # Three layers below keep 16 x 64 + 4 x 64 + 4 x 32 + 8 x 128 bytes a token, 2 fp32 statistics and 4 heads'; the
    # norm has its input, five products of 4 bytes and the residual's gradient of 2; cosines and sines 2 x 2 x 16.
    kept = 16 * 64 + 4 * 64 + 4 * 32 + 8 * 128 + 2 * 4 + 4 * 4
    assert held(norm, "activations") == 8 * (3 * kept + 26 * 64 + 64)


def test_of_more_tokens_its_second_norm_is_worse():
    norm = worst_of(step("accelerate", tokens=32), TOP)
    # The feed-forward's three matrices, 64 x 128 each; behind it the attention alone is kept: its norm 6 x 64 and a
    # statistic, its input, query and context 2 x 64 each, key and value 2 x 32 each, four heads' statistics.
    assert (norm.name, held(norm, "gradients")) == ("second norm", 4 * HEAD / 2 + 2 * 3 * 64 * 128)
    kept = 16 * 64 + 4 * 64 + 4 * 32 + 8 * 128 + 2 * 4 + 4 * 4
    attention = 6 * 64 + 4 + 3 * 2 * 64 + 2 * 2 * 32 + 4 * 4
    assert held(norm, "activations") == 32 * (3 * kept + attention + 26 * 64 + 64)


def test_of_many_tokens_its_last_matrix_is_worse():
    # One matrix's gradient, 2 x 64 x 128, in place of the whole layer's.
    matrix = worst_of(step("accelerate", tokens=1024), TOP)
    assert (matrix.name, held(matrix, "gradients")) == ("last matrix", 4 * HEAD / 2 + 2 * 64 * 128)


def test_of_few_tokens_the_first_of_a_feed_forward_s_matrices_is_cast_to_fp8_beside_the_others_gradients():
    plain = worst_of(step("fsdp2", tokens=8), TOP)
    cast = worst_of(step("fsdp2", tokens=8, training={"precision": "fp8-mixed"}), TOP)
    # Beside the head's shard, 4 bytes over 2 ranks, two of three matrices of 64 x 128 in 16 bits. The third is scaled
    # and clamped in fp32, and there in fp8.
    assert (cast.name, held(cast, "gradients")) == ("first matrix cast", 4 * HEAD / 2 + 2 * 2 * 64 * 128)
    assert held(cast, "activations") > held(plain, "activations") + (4 + 4) * 64 * 128


def test_dtensor_makes_the_gradient_of_a_split_embedding_whole():
    found = step("fsdp2", gpus=4, layout={"tensor_parallel": 2, "sequence_parallel": True})
    whole, cut = taken(found, "embedding's gradient"), taken(found, "embedding's gradient, cut")
    # A rank's matrices halve, the norms of 128 (and the last one's 64) do not: layers (36,864 / 2 + 128) and head
    # 32,000 + 64, in shards of 4 bytes over 2 ranks; the whole embedding 2 x 64,000, and its half that is made of it.
    shards = 4 * (4 * (18_432 + 128) + 32_064) / 2
    assert held(whole, "gradients") == shards + 2 * EMBEDDING
    assert held(cut, "gradients") == shards + 2 * EMBEDDING + 2 * 32_000
    # The gathered half of it, and the lowest layer's gradient in fp32.
    assert held(cut, "communication") == 2 * 32_000 + 4 * (18_432 + 128)


def test_without_tensor_parallelism_there_is_no_such_moment():
    assert "embedding's gradient, cut" not in {event.name for event in step("fsdp2")}


def test_both_gradients_of_a_tied_table_stand_beside_the_gathered_root_and_the_lowest_layer_s_reduction():
    meeting = taken(step("accelerate", tie_word_embeddings=True), "embedding's gradient")
    # Shards of the layers, 4 bytes over 2 ranks, the table twice in 16 bits, and the last norm.
    assert held(meeting, "gradients") == 4 * LAYERS * LAYER / 2 + 2 * (2 * EMBEDDING + NORM)
    assert held(meeting, "communication") == 2 * (EMBEDDING + NORM) + 2 * LAYER


def test_a_pipeline_has_no_shards_of_gradients_before_its_last_pass():
    found = step("fsdp2", tokens=8, batch=8, gpus=4, layout={"pipeline_parallel": 2})
    layer = taken(found, "first norm", layer=1)
    # First of two stages, its second layer: one layer's gradient in 16 bits, and 4 bytes of all that it sums.
    assert held(layer, "gradients") == 2 * LAYER
    assert held(layer, "communication") == 2 * (2 * LAYER + EMBEDDING) + 4 * (2 * LAYER + EMBEDDING)


def test_a_pipeline_reduces_its_first_unit_beside_all_summed_gradients():
    found = step("fsdp2", batch=8, gpus=4, layout={"pipeline_parallel": 2})
    reduced = next(event for event in found if event.phase == REDUCTION and event.item == "gradients")
    # The embedding: its weights are gone, its gradient is summed, copied for the reduction, and then half of it stays.
    assert held(reduced, "communication") == 2 * 2 * LAYER + 4 * (2 * LAYER + EMBEDDING) + 4 * EMBEDDING
    assert held(reduced, "gradients") == 4 * EMBEDDING / 2


def interleaved(**changes):
    """Return the step of a stage with two chunks of a layer each, two micro-batches in two stages."""
    degrees = {"pipeline_parallel": 2, "virtual_pipeline": 2}
    return step("fsdp2", batch=4, gpus=4, training={"divided": "even"}, layout=degrees, **changes)


def test_the_lowest_chunk_of_an_interleaved_stage_is_reduced_when_the_others_are_done():
    found = interleaved()
    reduced = next(event for event in found if event.phase == REDUCTION and event.item == "gradients")
    # The embedding's sum and its copy; the weights and the sum of the one layer that is left. Of the other layer there
    # is a shard, half of it in 4 bytes, and the embedding's.
    assert held(reduced, "communication") == 2 * LAYER + 4 * LAYER + 2 * 4 * EMBEDDING
    assert held(reduced, "gradients") == 4 * LAYER / 2 + 4 * EMBEDDING / 2


def test_the_head_is_reduced_with_its_chunk_while_a_lower_one_waits():
    found = interleaved(stage=1)
    copies = [event for event in found if event.name == "reduction" and event.phase == BACKWARD and event.change > 0]
    # Of the head its sum and the copy; of two layers the lower one's weights, without a sum of its own as yet.
    assert [held(event, "communication") for event in copies] == [2 * LAYER + 2 * 4 * HEAD]
    assert held(copies[0], "gradients") == 4 * LAYER / 2


def test_an_interleaved_stage_sums_the_embedding_s_gradient_in_its_lowest_chunk_alone():
    found = interleaved()
    summed = [event for event in found if event.name == "summed gradients" and event.change == 4 * EMBEDDING]
    (only,) = summed
    highest = next(place for place, event in enumerate(found) if event.name == "shards of higher chunks")
    assert found.index(only) > highest


def test_a_pipeline_sums_the_gradient_of_a_split_embedding_whole():
    layout = {"pipeline_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True}
    found = step("fsdp2", tokens=8, batch=8, gpus=8, layout=layout)
    summed = [event for event in found if event.name == "summed gradients" and event.layer is None and event.change > 0]
    # 4 bytes of all of the table on both tensor ranks; before the reduction the rank's half of it beside that.
    assert [event.change for event in summed] == [4 * EMBEDDING, 4 * EMBEDDING / 2]
    # As it is cast the gradient itself is whole, in 16 bits.
    assert held(summed[0], "gradients") == 2 * EMBEDDING


def test_weights_are_gathered_with_the_padding_of_their_shards():
    # 998 rows over 3 ranks are 333 a rank, and 999 gathered; the top layer, its buffer and the one before it aside.
    found = step("fsdp2", gpus=3, batch=3, layout={"data_parallel": 3}, vocab_size=998)
    (first, *_) = [event for event in found if event.name == "weights" and event.change > 0]
    assert first.change == 2 * 999 * 64


def test_the_next_stage_s_gradient_is_counted_once_though_it_lies_in_a_buffer():
    found = step("fsdp2", batch=8, gpus=4, layout={"pipeline_parallel": 2})
    changes = [event.change for event in found if event.name == "P2P buffers" and event.phase == BACKWARD]
    # 32 tokens of 64 features in 16 bits, for the highest layer of two passes that differ.
    message = 2 * 64 * TOKENS
    assert changes == [-message, message] * 2


def test_what_other_kinds_of_layers_keep_is_counted_as_they_are():
    model = spec(DEEPSEEK, num_hidden_layers=3, first_k_dense_replace=1)
    found = events("fsdp2", model=model, sequence_length=32, layout={"data_parallel": 2, "zero_stage": 3})
    kept = {event.layer: event.change for event in found if event.name == "kept by the layer" and event.change > 0}
    assert kept[1] == kept[2] != kept[0]


def test_one_mixture_above_dense_layers_is_reduced_beside_a_dense_layer_gathered_ahead():
    model = spec(DEEPSEEK, num_hidden_layers=4, first_k_dense_replace=3, n_routed_experts=64)
    layout = {"data_parallel": 2, "zero_stage": 3}
    found = events("fsdp2", model=model, sequence_length=8, global_batch_size=2, layout=layout)
    dense, mixture = (sum(weight.elements for weight in block.weights) for block in model.layers)
    # Of few tokens its own reduction is the worst: the fp32 buffer, and a dense layer's weights in 16 bits.
    worst = max((e for e in found if (e.layer, e.phase) == (3, BACKWARD)), key=lambda event: event.total)
    assert (worst.name, held(worst, "communication")) == ("shards", 4 * mixture + 2 * dense)


# Scaled and clamped in fp32 beside what is in fp8, or in fp8 alone; beside the gradient in 16 bits and in fp8 already.
@pytest.mark.parametrize(("kernels", "bytes_each"), [(None, 2 + 1 + 4 + 4 + 1), ("compiled", 2 + 1 + 1)])
def test_the_logits_gradient_is_cast_twice(kernels, bytes_each):
    cast = taken(fp8_step(kernels), "logits' gradient cast")
    assert held(cast, "logits") == bytes_each * TOKENS * WORDS


def fp8_step(kernels=None):
    return step("fsdp2", training={"precision": "fp8-mixed", "kernels": kernels})


def test_beside_the_head_s_cast_stands_the_logits_gradient_in_16_bits_and_in_fp8():
    assert held(taken(fp8_step(), "head cast"), "logits") == 0
    assert held(taken(fp8_step(), "head cast again"), "logits") == (2 + 1) * TOKENS * WORDS


@pytest.mark.parametrize("name", ["head cast", "head cast again"])
def test_the_head_is_scaled_and_clamped_in_fp32_where_no_kernel_does_it_at_once(name):
    eager, compiled = (taken(fp8_step(kernels), name).change for kernels in (None, "compiled"))
    assert eager - compiled == (4 + 4) * EMBEDDING


def test_the_head_stands_beside_its_buffer_and_then_beside_the_top_layer_s():
    names = ("head cast", "head cast again", "logits' gradient cast")
    assert [held(taken(fp8_step(), name), "communication") for name in names] == [
        2 * 2 * HEAD,
        2 * HEAD + 2 * LAYER,
        2 * HEAD + 2 * LAYER,
    ]


def test_a_loss_behind_the_root_finds_nothing_gathered_and_the_head_all_of_it_again():
    found = step("torchtune", **TUNE)
    loss = taken(found, "logits", phase=FORWARD)
    assert held(loss, "communication") == 0
    # 16-bit logits, the log-softmax of all, and an eighth cast up: 2 + 4 + 4 / 8 bytes.
    assert held(loss, "logits") == TOKENS * WORDS * 6.5
    again = taken(found, "weights", phase=BACKWARD)
    # What the loss leaves behind is the logits' gradient in 16 bits; the root is there in its buffer and copied out.
    assert (held(again, "communication"), held(again, "logits")) == (2 * 2 * ROOT, 2 * TOKENS * WORDS)


def test_two_chunks_gradients_of_the_head_meet_beside_seven_eighths_of_the_logits():
    second = taken(step("torchtune", **TUNE), "head's gradient of another chunk")
    assert held(second, "gradients") == 2 * 2 * EMBEDDING
    # The hidden states' gradients of both chunks, 2 bytes of 64 features.
    assert held(second, "logits") == 2 * TOKENS * WORDS * 7 / 8 + 2 * 2 * TOKENS * 64 / 8


def test_a_frozen_head_has_no_gradient_of_any_chunk():
    found = step("torchtune", training={"precision": "bf16", "method": "lora"})
    assert not [event for event in found if event.name == "head's gradient of another chunk" and event.change]


@pytest.mark.parametrize(("layout", "times"), [({}, 2), ({"activation_offload": True}, 0)])
def test_the_forward_pass_ends_with_the_highest_layer_s_product_and_the_stream_that_it_is_added_to(layout, times):
    found = step("accelerate", layout=layout)
    ends = [(event.layer, event.change) for event in found if event.name == "sums at the forward pass's end"]
    # Beside the sum, which is the stream that the program holds.
    assert ends[:1] == [(TOP, times * 2 * TOKENS * 64)][: len(ends)]
    assert bool(ends) == bool(times)

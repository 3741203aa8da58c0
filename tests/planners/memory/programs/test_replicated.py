"""DistributedDataParallel's step of a small Llama over two ranks: four layers, 32 tokens, 1,000 words."""

from plimsoll.planners.memory.steps.step import BACKWARD, FORWARD
from plimsoll.planners.questions import Lora
from tests.planners.factories import small_llama
from tests.planners.training_cases import events, held, taken

LAYERS, LAYER, TABLE, NORM = 4, 36_992, 64_000, 64
PARAMETERS = LAYERS * LAYER + 2 * TABLE + NORM
TOKENS, WORDS = 32, 1000


def step(framework="ddp", *, batch=2, layout=None, training=None, **changes):
    return events(
        framework,
        model=small_llama(**changes),
        sequence_length=TOKENS,
        global_batch_size=batch,
        gpus=2,
        layout={"data_parallel": 2, **(layout or {})},
        **(training or {}),
    )


def test_buckets_hold_a_second_copy_of_all_gradients_for_good():
    found = step()
    assert held(taken(found, "buckets"), "communication") == 4 * PARAMETERS
    assert held(found[-1], "communication") == 4 * PARAMETERS


def test_one_rank_alone_has_no_buckets():
    assert "buckets" not in {event.name for event in step(batch=1, layout={"data_parallel": 1})}


def test_autocast_copies_every_weight_once_until_its_layer_is_differentiated():
    found = step()
    copies = [event for event in found if event.name == "copies of weights"]
    assert held(copies[LAYERS], "parameters") == 4 * PARAMETERS + 2 * (LAYERS * LAYER + TABLE)
    assert [event.layer for event in copies if event.change < 0] == [None, 3, 2, 1, 0]
    assert held(found[-1], "parameters") == 4 * PARAMETERS


def test_recomputed_layers_lose_their_copies_with_the_forward_pass_and_make_them_again():
    copies = [event for event in step(layout={"recompute": 2}) if event.name == "copies of weights"]
    forward = [event.layer for event in copies if event.phase == FORWARD and event.change < 0]
    assert forward == [0, 1, 2, 3]
    assert max(held(event, "parameters") for event in copies if event.phase == BACKWARD) <= 4 * PARAMETERS + 2 * TABLE


def test_weights_in_16_bits_are_not_copied():
    found = step("accelerate", layout={"zero_stage": 0}, training={"precision": "bf16"})
    assert "copies of weights" not in {event.name for event in found}


def test_the_head_s_gradient_is_made_in_16_bits_and_then_in_fp32():
    head = taken(step(), "head's gradient")
    assert held(head, "gradients") == (2 + 4) * TABLE


def test_every_layer_adds_its_gradients_to_those_above():
    found = step()
    assert [held(e, "gradients") for e in found if e.name == "gradients"] == [
        4 * (TABLE + layers * LAYER) for layers in (1, 2, 3, 4)
    ]
    assert held(found[-1], "gradients") == 4 * PARAMETERS


def test_later_micro_batches_find_all_gradients_and_let_go_of_their_own():
    found = step(batch=4)
    assert held(taken(found, "gradients of the micro-batches before"), "gradients") == 4 * PARAMETERS
    # The embedding's own beside all others.
    assert held(taken(found, "embedding's gradient"), "gradients") == 4 * PARAMETERS + 4 * (TABLE + NORM)
    assert held(found[-1], "gradients") == 4 * PARAMETERS


def test_a_tied_table_has_both_gradients_until_the_pass_is_over():
    found = step(tie_word_embeddings=True)
    meeting = taken(found, "embedding's gradient")
    # All whole gradients, and the table once more.
    assert held(meeting, "gradients") == 4 * (LAYERS * LAYER + TABLE + NORM) + 4 * TABLE
    assert held(found[-1], "gradients") == 4 * (LAYERS * LAYER + TABLE + NORM)


def test_a_frozen_table_has_no_such_moment():
    found = step("ddp", tie_word_embeddings=True, training={"method": "lora"})
    assert "head's gradient" not in {event.name for event in found}


def test_what_the_lowest_layer_need_not_keep_behind_a_frozen_embedding_is_missing_in_both_passes():
    found = step("ddp", training={"method": "lora"})
    kept = {event.layer: event.change for event in found if event.name == "kept by the layer" and event.change > 0}
    assert kept[0] < kept[1] == kept[2] == kept[3]
    upper, lowest = (next(e for e in found if (e.name, e.layer) == ("last matrix", layer)) for layer in (1, 0))
    assert upper.change - lowest.change == kept[1] - kept[0]


def test_on_one_card_two_chunks_gradients_of_the_head_meet():
    found = step("torchtune", batch=1, layout={"data_parallel": 1, "zero_stage": 0}, training={"precision": "bf16"})
    both = taken(found, "head's gradients of two chunks")
    assert held(both, "gradients") == 2 * 2 * TABLE
    assert held(taken(found, "logits", phase=FORWARD), "logits") == TOKENS * WORDS * 6.5


def test_the_input_of_a_head_is_there_until_the_loss_is_known_though_the_head_saves_none_of_it():
    # Traced: Mistral of 1,572 tokens and 3,960 features, LoRA, fused loss: the norm's output, 11.87 MiB in 16 bits.
    frozen = step(training={"method": "lora", "lora": Lora(target_modules=("q_proj",)), "precision": "bf16"})
    assert taken(frozen, "head's input").change == 2 * TOKENS * 64
    # Traced: Qwen 3 of 33,850 tokens and 1,680 features under autocast: 216.93 MiB in fp32 beside the cast.
    assert taken(step(), "head's input").change == 4 * TOKENS * 64
    assert "head's input" not in {event.name for event in step(training={"precision": "bf16"})}


def test_a_head_comes_back_from_the_host_beside_its_input_and_that_one_s_gradient():
    # Traced: Mistral of 131,072 words and 5,120 features, LoRA: the frozen head's 1,280 MiB, and 10 of a gradient.
    layout, adapters = {"activation_offload": True}, {"method": "lora", "lora": Lora(target_modules=("q_proj",))}
    whole = step(layout=layout, training={"precision": "bf16"})
    frozen = step(layout=layout, training={"precision": "bf16", **adapters})
    assert taken(whole, "head from the host").change == 2 * TABLE + 2 * 2 * TOKENS * 64
    assert taken(frozen, "head from the host").change == 2 * (TABLE + NORM) + 2 * TOKENS * 64
    # Autocast's casts are copies.
    assert "head from the host" not in {event.name for event in step(layout=layout)}


def test_a_head_s_gradient_is_there_beside_its_logits_in_every_precision():
    found = step(training={"precision": "bf16"})
    assert held(taken(found, "head's fresh gradient"), "logits") == 2 * TOKENS * WORDS
    assert held(taken(found, "head's gradient"), "gradients") == 2 * TABLE


def test_under_autocast_the_forward_pass_ends_with_a_product_beside_the_stream():
    ends = [event for event in step() if event.name == "sums at the forward pass's end"]
    assert [event.change for event in ends] == [4 * TOKENS * 64, -4 * TOKENS * 64]

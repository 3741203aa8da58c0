"""What layers for multi-token prediction hold beside their own kind's, of a small Llama by hand."""

import pytest

from plimsoll.planners.memory.programs.multi_token import joint_bytes, multi_token
from plimsoll.planners.memory.steps.at_stage import at_stage
from plimsoll.planners.memory.steps.step import BACKWARD, FORWARD
from tests.planners.factories import small_llama
from tests.planners.training_cases import asked, events, held, memory

# 1,024 words are a multiple of 128, to which the table is padded.
HIDDEN, VOCABULARY, TOKENS = 64, 1024, 32
STREAM = 2 * HIDDEN * TOKENS
TABLE = 2 * VOCABULARY * HIDDEN
# A norm's statistic in fp32.
STATISTIC = 4 * TOKENS


def small(**changes):
    model = small_llama(vocab_size=VOCABULARY)
    return {"model": model, "sequence_length": TOKENS, "multi_token_prediction": 1, **changes}


def beside(**changes):
    return at_stage(multi_token(asked("megatron", **small(**changes))), 0, 0)


def joint(**changes):
    question = asked("megatron", **small(**changes))
    return int(joint_bytes(question)[0])


def test_around_a_layer_six_tensors_of_the_stream_s_width_are_kept():
    # Embedding, it and the stream side by side (two), the last norm's input, its output, and the outputs' copy.
    assert joint() == 6 * STREAM + 3 * STATISTIC


def test_of_a_recomputed_layer_its_outputs_are_kept():
    assert joint(layout={"recompute": 2}) == 2 * STREAM


def test_a_split_sequence_is_a_view_of_the_whole():
    # Half of six tensors, and the other half of the layer's input.
    split = joint(layout={"tensor_parallel": 2, "sequence_parallel": True})
    assert split == 3 * STREAM + 3 * STATISTIC // 2 + STREAM // 2


@pytest.mark.parametrize("layers", [1, 2])
def test_every_further_loss_keeps_its_logits_in_fp32(layers):
    found = beside(multi_token_prediction=layers)
    assert found.logits == layers * 4 * VOCABULARY * TOKENS
    assert found.named_logits == 2 * VOCABULARY * TOKENS


def test_the_next_token_s_loss_finds_the_others_logits():
    def most(**changes):
        return max(held(event, "logits") for event in events("megatron", **small(**changes)) if event.phase == FORWARD)

    assert most() - most(multi_token_prediction=0) == 6 * VOCABULARY * TOKENS


@pytest.mark.parametrize(("layers", "tables"), [(1, 1), (2, 2), (3, 2)])
def test_autograd_adds_up_empty_gradients_of_the_head(layers, tables):
    assert beside(multi_token_prediction=layers).head_sum == tables * TABLE


def test_the_first_stage_s_table_waits_for_the_embedding_s_own_gradient():
    assert beside().table_kept == TABLE
    last = at_stage(multi_token(asked("megatron", **small(layout={"pipeline_parallel": 2}))), 1, 0)
    assert (last.table_gradient, last.table_kept) == (TABLE, 0)


def test_no_stage_but_the_last_holds_anything_of_it():
    layout = {"pipeline_parallel": 2}
    first = at_stage(multi_token(asked("megatron", **small(layout=layout))), 0, 0)
    assert (first.logits, first.table_gradient, first.at_table) == (0, 0, 0)
    stages = [memory("megatron", layout=layout, **small(multi_token_prediction=number)).stages for number in (0, 1)]
    assert stages[0][0].peak_bytes == stages[1][0].peak_bytes
    assert stages[0][1].layers == (2, 3)
    assert stages[1][1].layers == (2, 4)


def test_its_stage_holds_layer_joint_and_the_table_again():
    layout = {"pipeline_parallel": 2}
    without, with_it = (
        memory("megatron", layout=layout, **small(multi_token_prediction=number)).stages[1].items for number in (0, 1)
    )
    # A layer has 36,992 parameters; 3 norms and a matrix of 128 x 64 join it; a table has 1,024 x 64.
    more = 36_992 + 3 * 64 + 2 * 64 * 64 + VOCABULARY * HIDDEN
    assert with_it.parameters - without.parameters == 2 * more
    assert with_it.gradients - without.gradients == 4 * more


def test_the_layer_is_differentiated_before_the_others_and_then_the_table():
    found = [event for event in events("megatron", **small()) if event.phase == BACKWARD]
    tables = [place for place, event in enumerate(found) if event.name == "embedding's gradient" and event.change > 0]
    layers = [event.layer for event in found[tables[0] :] if event.name == "last matrix"]
    assert [found[place].layer for place in tables] == [4, None]
    assert set(layers) == {0, 1, 2, 3}


def test_some_layers_recomputed_are_none_of_them():
    kept = {
        event.layer: event.change
        for event in events("megatron", **small(layout={"recompute": 2, "full_layers": 5}))
        if event.name == "kept by the layer" and event.change > 0
    }
    assert kept[0] == STREAM
    assert kept[4] > 6 * STREAM

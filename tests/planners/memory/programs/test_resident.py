"""Megatron's step of a small Llama: 64 features, 1,000 words, layers of 36,992 parameters."""

from plimsoll.planners.memory.programs.choice import events_of, prepared
from plimsoll.planners.memory.programs.question import question_of
from plimsoll.planners.memory.steps.step import BACKWARD, FORWARD
from tests.planners.factories import small_llama
from tests.planners.training_cases import events, held, job, memory, one_layout, taken

# Megatron makes 1,024 words of 1,000.
TOKENS, LAYER, TABLE = 32, 36_992, 1024 * 64
PARAMETERS = 4 * LAYER + 2 * TABLE + 64
MESSAGE = 2 * 64 * TOKENS


def step(framework="megatron", *, stage=0, layout=None, batch=None, **changes):
    size = {} if batch is None else {"global_batch_size": batch}
    return events(framework, stage=stage, model=small_llama(), sequence_length=TOKENS, layout=layout, **size, **changes)


def pipeline(batch, *, stage, **layout):
    return step(stage=stage, layout={"pipeline_parallel": 2, "zero_stage": 1, **layout}, batch=batch)


def test_whole_gradients_are_there_throughout():
    found = step()
    begun = next(place for place, event in enumerate(found) if event.item == "gradients")
    assert min(held(event, "gradients") for event in found[begun:]) == 4 * PARAMETERS
    assert held(found[-1], "gradients") == 4 * PARAMETERS


def test_layers_keep_their_tensors_until_they_are_differentiated_from_the_top():
    kept = [(event.phase, event.layer, event.change > 0) for event in step() if event.name == "kept by the layer"]
    up, down = kept[:4], kept[4:]
    assert up == [(FORWARD, layer, True) for layer in range(4)]
    assert down == [(BACKWARD, layer, False) for layer in (3, 2, 1, 0)]


def test_the_embedding_s_gradient_comes_last_beside_the_stream_s_alone():
    last = taken(step(), "embedding's gradient")
    # In 16 bits, before it is added to the main gradient in fp32.
    assert held(last, "gradients") == 4 * PARAMETERS + 2 * TABLE
    at_rest = next(event for event in step() if event.name == "workspaces and tables")
    assert held(last, "activations") == held(at_rest, "activations") + MESSAGE


def test_a_tied_table_s_gradients_are_added_up_in_a_tensor_of_their_own():
    tied = events("megatron", model=small_llama(tie_word_embeddings=True), sequence_length=TOKENS)
    summed = taken(tied, "its sum with the head's empty one")
    # One table less has gradients; of the other there are the embedding's in 16 bits and its sum.
    assert held(summed, "gradients") == 4 * (PARAMETERS - TABLE) + 2 * 2 * TABLE


def test_one_micro_batch_in_flight_waits_for_none():
    assert "micro-batches that wait" not in {event.name for event in pipeline(8, stage=1)}


def test_the_first_of_two_stages_has_a_second_micro_batch_in_flight():
    first = pipeline(8, stage=0)
    waiting = taken(first, "micro-batches that wait").change
    # As much as this micro-batch's two layers keep.
    assert waiting == sum(event.change for event in first if event.name == "kept by the layer" and event.change > 0)


def test_no_more_micro_batches_wait_than_there_are():
    assert "micro-batches that wait" not in {event.name for event in pipeline(1, stage=0)}


def test_the_next_stage_s_gradient_is_held_beside_every_layer_but_the_highest():
    first = pipeline(8, stage=0)
    (event,) = (event for event in first if event.name == "gradient of the next stage" and event.change > 0)
    assert (event.layer, event.change) == (1, MESSAGE)
    assert [event.change for event in first if event.name == "gradient of the next stage"] == [MESSAGE, -MESSAGE]


def test_the_head_s_stage_receives_none():
    assert "gradient of the next stage" not in {event.name for event in pipeline(8, stage=1)}


def test_logits_and_what_the_head_keeps_are_gone_as_the_top_layer_begins():
    found = step("reference")
    top = next(event for event in found if (event.phase, event.layer) == (BACKWARD, 3))
    assert held(taken(found, "logits"), "logits") > 0
    assert held(top, "logits") == 0


def test_the_peak_of_the_account_is_the_largest_event():
    planned = memory("megatron", model=small_llama(), sequence_length=TOKENS)
    assert planned.allocated_bytes == max(event.total for event in step())


def begun(found):
    return next(event for event in found if event.name == "workspaces and tables")


def test_autograd_is_handed_an_empty_gradient_of_each_matrix_and_keeps_it():
    found = step()
    # Queries and output 64 x 64, keys and values 32 x 64, three matrices of 128 x 64, and the head.
    shapes = {64 * 64, 32 * 64, 128 * 64}
    (empty,) = [event for event in found if event.name == "empty gradients"]
    assert empty.change >= 2 * (sum(shapes) + TABLE)
    assert held(found[-1], "activations") == empty.change


def test_a_split_stream_is_gathered_before_the_head_for_good():
    split = step(layout={"tensor_parallel": 2, "sequence_parallel": True, "zero_stage": 1})
    assert held(split[-1], "communication") == MESSAGE
    assert held(step()[-1], "communication") == 0


def test_a_pipeline_goes_forward_beside_the_gradients_it_last_sent_and_received():
    first, last = (pipeline(8, stage=stage) for stage in (0, 1))
    # The first stage sends none, the last receives none.
    assert held(begun(first), "activations") == held(begun(pipeline(2, stage=0)), "activations")
    names = [[event.name for event in found if event.change == MESSAGE] for found in (first, last)]
    assert "gradient received next" in names[0]
    assert "gradient sent last" not in names[0]
    assert "gradient sent last" in names[1]
    assert "gradient received next" not in names[1]


def divided(way, *, stage, **layout):
    """Return the events of a stage of two, of eight micro-batches, whose blocks are divided in a way."""
    asked = job(
        "megatron",
        model=small_llama(),
        sequence_length=TOKENS,
        global_batch_size=8,
        layout={"pipeline_layout": way},
    )
    rows = question_of(one_layout(pipeline_parallel=2, zero_stage=1, **layout), asked)
    return events_of(prepared(rows), stage, 0)


def test_an_interleaved_stage_has_received_the_next_input_and_not_let_go_of_what_it_sent():
    found = divided("even", stage=0, virtual_pipeline=2)
    names = ("input of the next forward pass", "output of the last forward pass", "gradient sent last")
    assert [taken(found, name).change for name in names] == [MESSAGE] * 3
    assert not [event for event in found if event.name == "input of the micro-batch before"]


def test_an_embedding_alone_in_its_chunk_has_no_gradient_but_the_received_one():
    # The first stage has chunks of no layer and of two.
    alone, others = (
        taken(divided(way, stage=0, virtual_pipeline=2), "stream's gradient") for way in ("E|t|tt|tL", "even")
    )
    assert (alone.change, others.change) == (MESSAGE, 2 * MESSAGE)


def test_a_stage_has_empty_gradients_of_the_matrices_that_it_has():
    without, others = (divided("E|t*4L", stage=stage) for stage in range(2))
    assert not [event for event in without if event.name == "empty gradients"]
    assert taken(others, "empty gradients").change > 0


def test_a_step_without_a_further_micro_batch_has_no_such_gradients():
    # As many micro-batches as wait on the first of two stages.
    names = {event.name for event in pipeline(2, stage=0)}
    assert not names & {"gradient received next", "gradient sent last"}


def test_a_later_stage_goes_forward_beside_the_input_of_the_micro_batch_before():
    name = "input of the micro-batch before"
    held_by = [[event for event in pipeline(8, stage=stage) if event.name == name] for stage in (0, 1)]
    assert held_by[0] == []
    taken_first, let_go = held_by[1]
    assert (taken_first.phase, taken_first.change) == (FORWARD, MESSAGE)
    assert (let_go.phase, let_go.change) == (BACKWARD, -MESSAGE)


def test_the_forward_pass_ends_with_the_highest_layer_s_product_and_sum():
    # Traced: Llama of 12 tensor ranks, 4,325 tokens: two tensors of 12.67 MiB beside what layers keep.
    ends = [event for event in step() if event.name == "sums at the forward pass's end"]
    assert [event.change for event in ends] == [2 * MESSAGE, -2 * MESSAGE]

"""Loading and evaluations."""

import pytest

from plimsoll.planners.memory.programs.outside_steps import hold, instants_of
from plimsoll.planners.memory.steps.at_stage import at_stage
from plimsoll.planners.memory.steps.record import RecordedStep
from plimsoll.planners.memory.steps.step import EVALUATION, LOADING
from plimsoll.planners.questions import Evaluation
from tests.planners.factories import small_llama
from tests.planners.training_cases import asked, events

# Four layers of 36,992 parameters, twice 1,000 x 64 and a norm of 64; one more word is predicted than of 32 tokens.
LAYER, ROOT, HEAD = 36_992, 128_064, 64_064
PARAMETERS = 4 * LAYER + ROOT
TOKENS, WORDS = 32, 1000


def question(zero_stage=0, framework="accelerate", **changes):
    return asked(
        framework,
        model=small_llama(),
        gpus=2,
        sequence_length=TOKENS,
        global_batch_size=16,
        layout={"data_parallel": 2, "zero_stage": zero_stage},
        **changes,
    )


def instants(phase, zero_stage=0, **changes):
    return [each for each in instants_of(question(zero_stage, **changes)) if each.phase == phase]


def test_an_evaluation_keeps_no_gradient_and_no_layer_but_one():
    layer, _, loss, end = instants(EVALUATION, evaluation=Evaluation(batch_size=1))
    assert layer.gradients.max() == loss.gradients.max() == end.gradients.max() == 0
    assert layer.activations.max() < question().active.stage.max()


@pytest.mark.parametrize(
    ("steps", "beside", "joined"),
    [
        (1, 0, 2 + 1),  # the batch as it was gathered, and the rank's own of it
        (2, 2, 2 * 4),  # the loop holds the very batch that waits
        (3, 4 + 2, 2 * 6),  # two are joined, and the loop holds the second too
    ],
)
def test_kept_predictions_are_every_rank_s_logits_twice_as_they_are_joined(steps, beside, joined):
    # Of two ranks, in fp32 under autocast.
    kept = Evaluation(keeps_logits=True, accumulation_steps=steps, batch_size=1, samples=100)
    layer, *_, end = instants(EVALUATION, evaluation=kept)
    assert layer.logits.max() == beside * TOKENS * WORDS * 4
    assert end.logits.max() == joined * TOKENS * WORDS * 4


def test_fsdp2_puts_logits_out_in_the_16_bits_of_its_products():
    kept = Evaluation(keeps_logits=True, accumulation_steps=2, batch_size=1, samples=100)
    assert instants(EVALUATION, 3, evaluation=kept)[-1].logits.max() == 2 * 4 * TOKENS * WORDS * 2


def test_an_evaluation_keeps_no_more_batches_than_it_has():
    few = Evaluation(keeps_logits=True, accumulation_steps=100, batch_size=1, samples=4)
    assert instants(EVALUATION, evaluation=few)[-1].logits.max() == 2 * 4 * TOKENS * WORDS * 4


def test_the_loss_of_a_batch_holds_logits_their_upcast_and_the_log_softmax():
    *_, loss, _ = instants(EVALUATION, evaluation=Evaluation(batch_size=1))
    assert loss.logits.max() == TOKENS * WORDS * (2 + 4 + 4)


@pytest.mark.parametrize(("zero_stage", "left"), [(3, 2 * HEAD), (2, 2 * PARAMETERS), (0, 4 * PARAMETERS)])
def test_the_head_s_unit_or_all_stay_gathered_and_buckets_stand(zero_stage, left):
    *_, end = instants(EVALUATION, zero_stage, evaluation=Evaluation())
    assert end.communication.max() == left


# The head's unit of the batch before is still gathered.
@pytest.mark.parametrize(("zero_stage", "gathered"), [(3, 2 * (2 * LAYER + HEAD)), (2, 2 * (PARAMETERS - HEAD))])
def test_an_evaluation_gathers_as_the_step_does(zero_stage, gathered):
    layer, *_ = instants(EVALUATION, zero_stage, evaluation=Evaluation())
    assert layer.communication.max() == gathered


def test_the_head_is_copied_out_of_its_buffer_beside_the_last_layer_s():
    _, head, loss, _ = instants(EVALUATION, 3, evaluation=Evaluation())
    assert head.communication.max() - loss.communication.max() == 2 * LAYER


def test_each_instant_is_held_and_let_go_of():
    step = RecordedStep()
    hold(step, at_stage(instants_of(question(evaluation=Evaluation())), 0, 0))
    step.close()
    assert step.events.written[-1].total == 0
    most = max(each.total.max() for each in instants(EVALUATION, evaluation=Evaluation()))
    assert max(event.total for event in step.events if event.phase == EVALUATION) == most


def test_a_job_without_any_has_no_event_outside_its_step():
    phases = {event.phase for event in events("fsdp2", model=small_llama(), sequence_length=TOKENS)}
    assert phases.isdisjoint({LOADING, EVALUATION})

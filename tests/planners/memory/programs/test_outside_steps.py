"""Loading and evaluations."""

import pytest

from plimsoll.planners.memory.programs.outside_steps import hold, instants_of
from plimsoll.planners.memory.steps.record import RecordedStep, at_stage
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
    layer, loss = instants(EVALUATION, evaluation=Evaluation(batch_size=1))
    assert layer.gradients.max() == loss.gradients.max() == 0
    assert layer.activations.max() < question().active.stage.max()


def test_kept_predictions_are_every_rank_s_logits_in_fp32():
    kept = Evaluation(keeps_logits=True, accumulation_steps=3, batch_size=1, samples=100)
    layer, _ = instants(EVALUATION, evaluation=kept)
    assert layer.logits.max() == 3 * 2 * TOKENS * WORDS * 4


@pytest.mark.parametrize(("zero_stage", "gathered"), [(3, 2 * 2 * LAYER), (2, 2 * (PARAMETERS - HEAD))])
def test_an_evaluation_gathers_as_the_step_does(zero_stage, gathered):
    layer, _ = instants(EVALUATION, zero_stage, evaluation=Evaluation())
    assert layer.communication.max() == gathered


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

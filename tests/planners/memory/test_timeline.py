"""The curve of a step: its moments in order."""

from plimsoll.planners.memory.steps.step import BACKWARD, EVALUATION, FORWARD, UPDATE
from plimsoll.planners.memory.timeline import moments_of
from plimsoll.planners.questions import Evaluation
from tests.planners.factories import small_llama
from tests.planners.training_cases import events, memory

# small_llama: 4 layers of 64x64 + 2x32x64 + 64x64 + 3x64x128 + 2x64 = 36,992, twice 1000x64 and a norm of 64.
PARAMETERS = 4 * 36_992 + 2 * 64_000 + 64


def _moments(**changes):
    (stage,) = memory(model=small_llama(), sequence_length=32, **changes).stages
    return stage.moments


def test_a_step_goes_forward_and_back_through_every_layer_and_ends_with_the_optimizer():
    layers = [(moment.phase, moment.layer) for moment in _moments()]
    assert layers == [
        (FORWARD, None),
        *((FORWARD, layer) for layer in range(4)),
        (FORWARD, None),
        (BACKWARD, None),
        *((BACKWARD, layer) for layer in (3, 2, 1, 0)),
        (UPDATE, None),
    ]


def test_the_embedding_s_gradient_comes_after_every_layer():
    # Megatron's embedding makes its whole gradient last, when nothing that the layers kept is left.
    backward = [moment for moment in _moments(framework="megatron") if moment.phase == BACKWARD]
    assert [moment.layer for moment in backward] == [None, 3, 2, 1, 0, None]
    assert backward[-1].items.activations < backward[-2].items.activations


def test_of_every_layer_and_phase_the_worst_event_is_told():
    of_layer = [event.total for event in events(model=small_llama(), sequence_length=32) if event.layer == 2]
    moments = [moment.allocated_bytes for moment in _moments() if moment.layer == 2]
    assert max(moments) == max(of_layer)
    assert len(moments) == 2


def test_of_two_events_of_one_phase_the_larger_is_told():
    # Where autocast copies weights, the forward pass's end and the loss are two events.
    planned = memory("accelerate", layout={"data_parallel": 1})
    loss = max(moment.allocated_bytes for moment in planned.stages[0].moments if moment.phase in (FORWARD, BACKWARD))
    assert loss == planned.allocated_bytes


def test_an_update_that_makes_nothing_finds_what_the_passes_left():
    (update,) = (moment for moment in _moments() if moment.phase == UPDATE)
    assert (update.items.activations, update.items.logits, update.allocated_bytes) == (0, 0, 16 * PARAMETERS)


def test_an_update_s_own_temporaries_are_told_once():
    (update,) = (moment for moment in _moments(framework="accelerate") if moment.phase == UPDATE)
    assert update.items.optimizer > 8 * PARAMETERS


def test_nothing_has_no_moments():
    assert moments_of((), ()) == ()


def test_an_evaluation_comes_after_the_step():
    phases = [moment.phase for moment in _moments(evaluation=Evaluation())]
    assert phases.index(EVALUATION) > phases.index(UPDATE)


def test_the_largest_moment_of_the_worst_stage_is_what_is_allocated():
    planned = memory("megatron", layout={"pipeline_parallel": 4, "zero_stage": 1}, global_batch_size=16)
    largest = [max(moment.allocated_bytes for moment in stage.moments) for stage in planned.stages]
    assert max(largest) == planned.allocated_bytes


def test_a_moment_is_the_sum_of_its_items():
    planned = memory("fsdp2", layout={"data_parallel": 8, "zero_stage": 3})
    for moment in planned.stages[0].moments:
        items = moment.items
        parts = (items.parameters, items.gradients, items.optimizer, items.activations, items.logits)
        assert moment.allocated_bytes == sum(parts) + items.communication


def layers_back(stage):
    return [moment.layer for moment in stage.moments if moment.phase == BACKWARD and moment.layer is not None]


def test_layers_are_numbered_through_all_stages():
    planned = memory("megatron", layout={"pipeline_parallel": 4, "zero_stage": 1}, global_batch_size=16)
    assert layers_back(planned.stages[3]) == [31, 30, 29, 28, 27, 26, 25, 24]


def test_moments_of_an_interleaved_stage_name_the_layers_of_its_chunks():
    # 32 layers on 4 stages in 2 chunks: stage 0 has layers 0 to 3 and 16 to 19.
    layout = {"pipeline_parallel": 4, "virtual_pipeline": 2, "zero_stage": 1}
    first, *_ = memory("megatron", layout=layout, global_batch_size=16).stages
    assert layers_back(first) == [19, 18, 17, 16, 3, 2, 1, 0]

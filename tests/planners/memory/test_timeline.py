"""The moments of a step, in order."""

import pytest

from plimsoll.planners.memory.steps import step as phases
from plimsoll.planners.memory.steps.events import Event, Events
from plimsoll.planners.memory.timeline import IN_ORDER, moments_of
from plimsoll.planners.questions import Evaluation
from tests.planners.factories import small_llama
from tests.planners.training_cases import memory

# small_llama: 4 layers of 64x64 + 2x32x64 + 64x64 + 3x64x128 + 2x64 = 36,992, twice 1000x64 and a norm of 64.
PARAMETERS = 4 * 36_992 + 2 * 64_000 + 64
# AdamW counts its steps in 4 bytes for each of 4 x 9 + 3 tensors.
STEP_COUNTERS = 39 * 4


def _moments(**changes):
    (stage,) = memory(model=small_llama(), sequence_length=32, **changes).stages
    return stage.moments


def _update(**changes):
    (found,) = (moment for moment in _moments(**changes) if moment.phase == "optimizer step")
    return found


def of_events(*totals):
    """Return the moments of a stage of layers 10 and 11 after events of (phase, layer of the stage, total)."""
    events = [
        Event(phase=phase, layer=layer, item="activations", name="", change=0, held=(0, 0, 0, total, 0, 0), total=total)
        for phase, layer, total in totals
    ]
    return [(each.phase, each.layer, each.allocated_bytes) for each in moments_of(Events(events), (10, 11))]


FORWARD, BACKWARD, REDUCTION, UPDATE = phases.FORWARD, phases.BACKWARD, phases.REDUCTION, phases.UPDATE


def test_a_step_goes_forward_to_the_top_layer_and_back_and_ends_with_the_optimizer():
    assert [(moment.phase, moment.layer) for moment in _moments()] == [
        *((FORWARD, layer) for layer in (None, 0, 1, 2, 3, None)),
        *((BACKWARD, layer) for layer in (None, 3, 2, 1, 0)),
        (UPDATE, None),
    ]


def test_of_a_part_the_most_is_told_and_what_it_finds_counts_with_it():
    # Layer 11 finds 5 and lets 3 go; the head finds 4.
    assert of_events((FORWARD, None, 1), (FORWARD, 0, 7), (FORWARD, 0, 5), (FORWARD, 1, 2), (FORWARD, None, 4)) == [
        (FORWARD, None, 1),
        (FORWARD, 10, 7),
        (FORWARD, 11, 5),
        (FORWARD, None, 4),
        (UPDATE, None, 4),
    ]


def test_a_pass_without_events_before_or_behind_its_layers_has_what_it_finds_there():
    assert of_events((FORWARD, None, 1), (FORWARD, 0, 3), (BACKWARD, 0, 2), (UPDATE, None, 2)) == [
        (FORWARD, None, 1),
        (FORWARD, 10, 3),
        (FORWARD, None, 3),
        (BACKWARD, None, 3),
        (BACKWARD, 10, 3),
        (BACKWARD, None, 2),
        (UPDATE, None, 2),
    ]


def test_several_micro_batches_count_as_one():
    one = [(FORWARD, 0, 4), (FORWARD, None, 5), (BACKWARD, 0, 4)]
    other = [(FORWARD, 0, 3), (FORWARD, None, 6), (BACKWARD, 0, 5)]
    assert [found for found in of_events(*one, *other) if found[1] is not None] == [
        (FORWARD, 10, 4),
        (BACKWARD, 10, 6),  # what the second one finds
    ]


def test_layers_that_are_gone_through_again_belong_to_what_is_behind_them():
    # Copies that are let go of as the forward pass ends.
    found = of_events((FORWARD, 0, 1), (FORWARD, 1, 2), (FORWARD, None, 9), (FORWARD, 0, 8), (FORWARD, 1, 7))
    assert (FORWARD, 10, 1) in found
    assert (FORWARD, None, 9) in found


def test_layers_that_are_reduced_one_by_one_are_one_moment():
    found = of_events((FORWARD, None, 1), (REDUCTION, 0, 3), (REDUCTION, 1, 2), (UPDATE, None, 2))
    assert [each for each in found if each[0] == REDUCTION] == [(REDUCTION, None, 3)]


def test_the_embedding_s_gradient_comes_after_every_layer():
    # Megatron's embedding makes its whole gradient last, when nothing that the layers kept is left.
    moments = [moment for moment in _moments(framework="megatron") if moment.phase == BACKWARD]
    assert [moment.layer for moment in moments] == [None, 3, 2, 1, 0, None]
    *_, lowest_layer, embedding = moments
    assert embedding.items.activations < lowest_layer.items.activations


def test_every_phase_has_its_place():
    named = (value for name, value in vars(phases).items() if name.isupper() and isinstance(value, str))
    assert sorted(IN_ORDER) == sorted(named)


@pytest.mark.parametrize(("batch", "bytes_a_parameter"), [(1, 12), (2, 16)])
def test_a_step_begins_with_the_states_and_later_micro_batches_with_the_gradients(batch: int, bytes_a_parameter: int):
    # FSDP2 keeps weights and both moments of Adam in fp32: 4 + 4 + 4 bytes, and 4 of the gradients that are there.
    # The embedding is there whole, in bf16, with the buffer that it was gathered into, and a residual of 32 x 64.
    first = _moments(framework="fsdp2", global_batch_size=batch)[0]
    held = first.items.parameters + first.items.optimizer + first.items.gradients
    assert held == bytes_a_parameter * PARAMETERS + STEP_COUNTERS


def test_the_optimizer_steps_when_the_activations_are_gone():
    update = _update()
    assert (update.items.activations, update.items.logits, update.allocated_bytes) == (0, 0, 16 * PARAMETERS)


def test_an_update_that_takes_nothing_holds_states_and_gradients():
    assert _update(framework="fsdp2").allocated_bytes == 16 * PARAMETERS + STEP_COUNTERS


def test_an_evaluation_comes_after_the_step():
    found = [moment.phase for moment in _moments(evaluation=Evaluation())]
    assert found.index("evaluation") > found.index("optimizer step")


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


def _differentiated(stage):
    return [each.layer for each in stage.moments if each.phase == BACKWARD and each.layer is not None]


def test_layers_are_numbered_through_all_stages():
    planned = memory("megatron", layout={"pipeline_parallel": 4, "zero_stage": 1}, global_batch_size=16)
    assert _differentiated(planned.stages[3]) == [31, 30, 29, 28, 27, 26, 25, 24]


def test_moments_of_an_interleaved_stage_name_the_layers_of_its_chunks():
    # 32 layers on 4 stages in 2 chunks: stage 0 has layers 0 to 3 and 16 to 19.
    layout = {"pipeline_parallel": 4, "virtual_pipeline": 2, "zero_stage": 1}
    first, *_ = memory("megatron", layout=layout, global_batch_size=16).stages
    assert _differentiated(first) == [19, 18, 17, 16, 3, 2, 1, 0]

"""The events of a step, in order."""

from plimsoll.planners.memory.items import PHASES
from plimsoll.planners.memory.timeline import IN_ORDER
from plimsoll.planners.questions import Evaluation
from tests.planners.factories import small_llama
from tests.planners.training_cases import memory

# small_llama: 4 layers of 64x64 + 2x32x64 + 64x64 + 3x64x128 + 2x64 = 36,992, twice 1000x64 and a norm of 64.
PARAMETERS = 4 * 36_992 + 2 * 64_000 + 64
# AdamW counts its steps in 4 bytes for each of 4 x 9 + 3 tensors.
STEP_COUNTERS = 39 * 4


def _events(**changes):
    (stage,) = memory(model=small_llama(), sequence_length=32, **changes).stages
    return stage.moments


def _event(phase, **changes):
    """Return the one event of a phase."""
    (found,) = (event for event in _events(**changes) if event.phase == phase)
    return found


def test_a_step_goes_forward_back_from_the_top_layer_and_ends_with_the_optimizer():
    events = _events()
    assert [(step.phase, step.layer) for step in events] == [
        ("forward", None),
        ("forward and loss", None),
        ("backward", 3),
        ("backward", 2),
        ("backward", 0),
        ("root gradient reduction", None),
        ("optimizer step", None),
    ]


def test_the_embedding_s_gradient_comes_after_every_layer():
    # Megatron's embedding makes its whole gradient last, when nothing that the layers kept is left.
    events = [step for step in _events(framework="megatron") if step.phase == "backward"]
    assert [step.layer for step in events] == [3, 2, 0, None]
    activations = {step.layer: step.items.activations for step in events}
    assert activations[None] < activations[0]


def test_every_phase_has_its_place():
    assert sorted(IN_ORDER) == sorted(PHASES)


def test_the_first_forward_pass_begins_with_the_states_alone():
    # FSDP2 keeps weights and both events in fp32 and lets the gradients go: 4 + 4 + 4 bytes.
    assert _event("forward", framework="fsdp2").allocated_bytes == 12 * PARAMETERS + STEP_COUNTERS


def test_later_micro_batches_begin_beside_the_gradients():
    begun = _event("forward", framework="fsdp2", global_batch_size=2)
    assert begun.allocated_bytes == 16 * PARAMETERS + STEP_COUNTERS


def test_the_optimizer_steps_when_the_activations_are_gone():
    update = _event("optimizer step")
    assert (update.items.activations, update.items.logits, update.allocated_bytes) == (0, 0, 16 * PARAMETERS)


def test_an_evaluation_comes_after_the_step():
    phases = [step.phase for step in _events(evaluation=Evaluation())]
    assert phases.index("evaluation") > phases.index("optimizer step")


def test_the_largest_moment_of_the_worst_stage_is_what_is_allocated():
    planned = memory("megatron", layout={"pipeline_parallel": 4, "zero_stage": 1}, global_batch_size=16)
    largest = [max(step.allocated_bytes for step in stage.moments) for stage in planned.stages]
    assert max(largest) == planned.allocated_bytes


def test_a_moment_is_the_sum_of_its_items():
    planned = memory("fsdp2", layout={"data_parallel": 8, "zero_stage": 3})
    for step in planned.stages[0].moments:
        items = step.items
        parts = (items.parameters, items.gradients, items.optimizer, items.activations, items.logits)
        assert step.allocated_bytes == sum(parts) + items.communication


def test_layers_are_numbered_through_all_stages():
    planned = memory("megatron", layout={"pipeline_parallel": 4, "zero_stage": 1}, global_batch_size=16)
    assert [step.layer for step in planned.stages[3].moments if step.layer is not None] == [31, 30, 24]


def test_moments_of_an_interleaved_stage_name_the_layers_of_its_chunks():
    # 32 layers on 4 stages in 2 chunks: stage 0 has layers 0 to 3 and 16 to 19, its top two 19 and 18.
    layout = {"pipeline_parallel": 4, "virtual_pipeline": 2, "zero_stage": 1}
    first, *_ = memory("megatron", layout=layout, global_batch_size=16).stages
    assert [step.layer for step in first.moments if step.layer is not None] == [19, 18, 0]


def test_of_two_moments_of_one_phase_the_larger_is_told():
    # Where autocast copies weights, the forward pass's end and the loss are two events.
    planned = memory("accelerate", layout={"data_parallel": 1})
    (loss,) = (step for stage in planned.stages for step in stage.moments if step.phase == "forward and loss")
    assert loss.allocated_bytes == planned.allocated_bytes

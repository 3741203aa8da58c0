"""What lies on a rank before the first pass and after the last, of a small Llama."""

from dataclasses import replace

import numpy as np
import pytest

from plimsoll.planners.ground.terms import RECOMPUTE_MODES
from plimsoll.planners.memory.programs.at_rest import at_rest, begin, update, waiting_micro_batch
from plimsoll.planners.memory.programs.question import question_of
from plimsoll.planners.memory.rotary_tables import lasting_rotary_table_bytes
from plimsoll.planners.memory.steps.at_stage import at_stage
from plimsoll.planners.memory.steps.record import RecordedStep
from plimsoll.planners.memory.steps.step import UPDATE
from tests.planners.factories import small_llama
from tests.planners.training_cases import asked, events, held

# Four layers of 36,992, twice 1,000 x 64 and a norm of 64; AdamW counts its steps in 4 bytes for each of 4 x 9 + 3.
PARAMETERS = 4 * 36_992 + 2 * 64_000 + 64
STEP_COUNTERS = 39 * 4


def question(framework="fsdp2", **changes):
    return asked(framework, model=small_llama(), sequence_length=32, **changes)


def begun(framework="fsdp2", **changes):
    """Return what is held before the first pass, but for what the passes need."""
    found = events(framework, model=small_llama(), sequence_length=32, **changes)
    place = next(place for place, event in enumerate(found) if event.name == "workspaces and tables")
    return found[place - 1]


def test_the_first_forward_pass_begins_with_the_states_alone():
    # FSDP2 keeps weights and both moments in fp32 and lets the gradients go: 4 + 4 + 4 bytes.
    assert begun().total == 12 * PARAMETERS + STEP_COUNTERS


def test_later_micro_batches_begin_beside_the_gradients():
    assert begun(global_batch_size=2).total == 16 * PARAMETERS + STEP_COUNTERS


@pytest.mark.parametrize("framework", ["reference", "fsdp2", "ddp", "accelerate", "nanotron"])
@pytest.mark.parametrize("batch", [1, 4])
def test_an_update_finds_the_states_and_all_gradients_and_no_work(framework, batch):
    found = events(framework, model=small_llama(), sequence_length=32, global_batch_size=batch)
    gradients = at_stage(at_rest(question(framework), keeps_gradients=[True]), 0, 0).all_gradients
    assert (held(found[-1], "activations"), held(found[-1], "logits")) == (0, 0)
    assert held(found[-1], "gradients") == gradients


def test_what_an_update_makes_is_gone_when_it_is_over():
    rest = at_stage(at_rest(question("accelerate"), keeps_gradients=[True]), 0, 0)
    step = RecordedStep()
    lasting = begin(step, rest)
    step.drop(lasting.passes)
    before = step.events.written[-1].total
    update(step, rest)
    step.close()
    made = [event for event in step.events if event.phase == UPDATE]
    assert sum(event.change for event in made) == 0
    assert step.events.written[-1].total == before


@pytest.mark.parametrize(("schedule", "is_more"), [("1f1b", False), ("gpipe", True)])
def test_under_gpipe_a_waiting_micro_batch_is_through_the_loss(schedule, is_more):
    layout = {"pipeline_parallel": 2, "zero_stage": 3}
    found = question(layout=layout, global_batch_size=4)
    found = question_of(found.layouts, replace(found.job, pipeline_schedule=schedule))
    assert (waiting_micro_batch(found)[-1].max() > found.active.stage[-1].max() + 1) == is_more


@pytest.mark.parametrize(("recompute", "kept"), [("selective", 1), ("full", 1), ("none", 0)])
def test_a_micro_batch_waits_with_eager_attention_s_mask_where_layers_run_again(recompute, kept):
    wanted = question(attention="eager", layout={"recompute": RECOMPUTE_MODES.index(recompute)})
    waits = waiting_micro_batch(wanted)
    # 32 x 32 positions in 16 bits, for all layers.
    assert (waits - wanted.active.stage).item() == pytest.approx(kept * 32 * 32 * 2, abs=1)


@pytest.mark.parametrize(
    ("changes", "tables"),
    [
        ({}, 1),
        ({"method": "lora"}, 4),
        # Llama 3.1's builder shares one table beside adapters too.
        ({"method": "lora", "max_position_embeddings": 131_072}, 1),
        # Qwen's repeats both for a pair's second feature.
        ({"model_type": "qwen2"}, 2),
    ],
)
def test_tables_of_all_positions_stand_beside_the_weights(changes, tables):
    of_model = {"max_position_embeddings": 512, **changes}
    method = of_model.pop("method", "full")
    of_run = {"precision": "bf16", "method": method, "sequence_length": 32}
    found = [
        at_rest(asked(framework, model=small_llama(**of_model), **of_run), keeps_gradients=np.zeros(1, dtype=bool))
        for framework in ("torchtune", "fsdp2")
        if method == "full" or framework == "torchtune"
    ]
    positions = of_model["max_position_embeddings"]
    lasting = lasting_rotary_table_bytes(asked("torchtune", model=small_llama(**of_model), **of_run).job)
    # A cosine and a sine for each pair of 16 features in fp32.
    assert lasting == tables * positions * 16 * 4
    if method == "full":
        assert float((found[0].parameters - found[1].parameters).max()) == lasting

"""Events of the forward pass of a small Llama over two ranks; every length is even, so that nothing is padded.

A layer has 36,992 parameters and 2 layers' matrices and norms alike; embedding and head 64,000 each, the last norm 64.
"""

import pytest

from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.layouts.stages import all_stages
from plimsoll.planners.memory.activity import activity
from plimsoll.planners.memory.forward import forward_items
from plimsoll.planners.memory.holdings import holdings
from plimsoll.planners.memory.step_context import step_context
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import question, small_llama
from tests.planners.training_cases import at_event

LAYER, HEAD, ROOT = 36_992, 64_064, 128_064
TOKENS, WORDS = 32, 1000


def events(framework, *, kernels=None, **changes):
    asked = question(model=small_llama(**changes), sequence_length=TOKENS, global_batch_size=2, kernels=kernels, gpus=2)
    job = training_job(asked, load_profile(framework))
    layouts = candidates_from_rows([{"data_parallel": 2, "zero_stage": 3}])
    rows = all_stages(layouts, job.model, asked.global_batch_size)
    held, active = holdings(layouts, rows, job), activity(layouts, rows, job)
    return list(forward_items(step_context(layouts, rows, job, held, active)))


def test_the_last_layer_s_gather_meets_the_buffer_of_the_layer_before():
    # The root, one layer's weights and two layers' buffers, 2 bytes each.
    assert at_event(events("accelerate"), "last layer gathered").communication.item() == 2 * (ROOT + 3 * LAYER)


def test_the_first_layer_s_gather_meets_the_root_s_buffer():
    first = at_event(events("accelerate"), "first layer gathered")
    # The root and one layer, buffer and weights each; of activations the embedding's output, 64 features, and cosines
    # and sines, 2 x 16, 2 bytes each.
    assert first.communication.item() == 2 * 2 * (ROOT + LAYER)
    assert first.activations.item() == TOKENS * 2 * (64 + 2 * 16)


def test_units_for_the_vocabulary_are_not_gathered_with_the_last_layer():
    assert at_event(events("fsdp2"), "last layer gathered").communication.item() == 2 * 3 * LAYER


def test_the_backward_pass_gathers_the_root_again_beside_the_log_softmax():
    again = at_event(events("accelerate"), "root gathered again")
    assert again.communication.item() == 2 * 2 * ROOT
    assert again.logits.item() == 4 * TOKENS * WORDS


def test_fsdp1_has_views_of_its_buffers_and_keeps_the_root():
    # The loss alone, with the root and the last layer's buffer.
    (loss,) = events("accelerate", kernels="eager")
    assert (loss.event, loss.communication.item()) == ("loss", 2 * (ROOT + LAYER))


@pytest.mark.parametrize(("tied", "gathered"), [(False, HEAD), (True, HEAD)])
def test_a_loss_outside_the_model_meets_the_head_alone(tied, gathered):
    # A tied head's unit is the root: one matrix and the last norm.
    loss = at_event(events("fsdp2", tie_word_embeddings=tied), "loss")
    assert loss.communication.item() == 2 * gathered

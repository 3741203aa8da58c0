"""Events at a head of its own, of a small Llama: hidden 64, 1,000 words, 32 tokens of one sequence a rank."""

import pytest

from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.layouts.stages import all_stages
from plimsoll.planners.memory.activity import activity
from plimsoll.planners.memory.head_backward import head_casts
from plimsoll.planners.memory.holdings import holdings
from plimsoll.planners.memory.step_context import step_context
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import question, small_llama
from tests.planners.training_cases import at_event

TOKENS, WORDS, HIDDEN = 32, 1000, 64
LAYER, HEAD = 36_992, 64_064


MATRIX = WORDS * HIDDEN


def casts(kernels=None):
    asked = question(
        model=small_llama(), sequence_length=TOKENS, global_batch_size=2, gpus=2, precision="fp8-mixed", kernels=kernels
    )
    job = training_job(asked, load_profile("fsdp2"))
    layouts = candidates_from_rows([{"data_parallel": 2, "zero_stage": 3}])
    rows = all_stages(layouts, job.model, 2)
    held, active = holdings(layouts, rows, job), activity(layouts, rows, job)
    return list(head_casts(step_context(layouts, rows, job, held, active)))


# In 16 bits and in fp8 already; then scaled and clamped in fp32, and fp8, or fp8 alone.
@pytest.mark.parametrize(("kernels", "bytes_each"), [(None, 2 + 1 + 4 + 4 + 1), ("compiled", 2 + 1 + 1)])
def test_the_logits_gradient_is_cast_twice(kernels, bytes_each):
    assert at_event(casts(kernels), "logits' gradient cast").logits.item() == bytes_each * TOKENS * WORDS


def test_beside_the_head_s_cast_stands_the_logits_gradient_in_16_bits_and_in_fp8():
    assert at_event(casts(), "head cast").logits.item() == 0
    assert at_event(casts(), "head cast again").logits.item() == (2 + 1) * TOKENS * WORDS


@pytest.mark.parametrize("event", ["head cast", "head cast again"])
def test_the_head_is_scaled_and_clamped_in_fp32_where_no_kernel_does_it_at_once(event):
    eager, compiled = (at_event(casts(kernels), event).activations.item() for kernels in (None, "compiled"))
    assert eager - compiled == (4 + 4) * MATRIX


def test_the_head_stands_beside_its_buffer_and_then_beside_the_top_layer():
    assert {items.event: items.communication.item() for items in casts()} == {
        "head cast": 2 * 2 * HEAD,
        "head cast again": 2 * HEAD + 2 * LAYER,
        "logits' gradient cast": 2 * HEAD + 2 * LAYER,
    }

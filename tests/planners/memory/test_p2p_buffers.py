"""Two stages of a small Llama (hidden 64), micro-batches of 32 tokens: a message has 2 x 32 x 64 bytes."""

import pytest

from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import FULL, candidates_from_rows
from plimsoll.planners.layouts.stages import all_stages
from plimsoll.planners.memory.p2p_buffers import p2p_buffer_bytes, received_gradient_bytes
from plimsoll.planners.questions import Recompute
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import question, small_llama

MESSAGE = 2 * 32 * 64


def p2p_buffers(framework="fsdp2", *, of=p2p_buffer_bytes, recompute_every=None, **layout):
    every = {} if recompute_every is None else {"recompute": Recompute(mode=FULL, every=recompute_every)}
    even = {"layout": {"pipeline_layout": "even"}}
    asked = question(model=small_llama(), sequence_length=32, global_batch_size=8, gpus=4, **even, **every)
    job = training_job(asked, load_profile(framework))
    layouts = candidates_from_rows([{"data_parallel": 2, "pipeline_parallel": 2, **layout}])
    return (of(layouts, all_stages(layouts, job), job, MESSAGE) / MESSAGE).reshape(-1).tolist()


@pytest.mark.parametrize(
    ("layout", "first", "last"),
    [
        # Four micro-batches: the first stage's gradients and the two outputs in flight; the last stage's inputs.
        ({"zero_stage": 3}, 4 + 2, 4),
        # A recomputed layer keeps the input itself, and the last stage one at a time.
        ({"zero_stage": 3, "recompute": FULL}, 4 + 2, 4 - 1),
        # Two chunks each: 2.5 and 1.5 micro-batches of both in flight, of which the first rank sends both and the last
        # receives both.
        ({"zero_stage": 3, "virtual_pipeline": 2}, 4 * 3 + 2.5 * 2, 4 * 3 + 1.5),
    ],
)
def test_torch_has_a_buffer_for_every_micro_batch_and_holds_what_it_sent(layout, first, last):
    assert p2p_buffers(**layout) == [first, last]


@pytest.mark.parametrize("partly", [{"full_layers": 0}, {"recompute_every": 2}])
def test_an_input_that_its_layer_does_not_compute_again_is_no_buffer_of_the_layer_s(partly):
    assert p2p_buffers(zero_stage=3, recompute=FULL, **partly) == [4 + 2, 4]


def test_megatron_receives_one_gradient_at_a_time_on_all_stages_but_the_last():
    assert p2p_buffers("megatron", zero_stage=1) == [0.0]
    assert p2p_buffers("megatron", of=received_gradient_bytes, zero_stage=1) == [1.0, 0.0]


def test_without_a_pipeline_nothing_is_sent():
    assert p2p_buffers(pipeline_parallel=1, data_parallel=4) == [0.0]

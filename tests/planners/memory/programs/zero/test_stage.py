"""DeepSpeed's ZeRO with its optimizer on the host: where the gradients are."""

import pytest

from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.memory.peak import memory_of
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import hardware, question, small_llama

# Four layers of 36,864 in matrices and 128 in norms, embedding and head of 64,000 each, the last norm's 64.
LAYER = 36_864 + 128
PARAMETERS = 4 * LAYER + 2 * 64_000 + 64
BUCKET = 2 * 500_000_000  # reduce_bucket_size elements of 2 bytes


def _memory(zero_stage, offload, *, gpus=1, micro_batches=1):
    asked = question(
        model=small_llama(), gpus=gpus, sequence_length=8, global_batch_size=gpus * micro_batches, framework="deepspeed"
    )
    layout = {"data_parallel": gpus, "zero_stage": zero_stage, "offload": offload}
    return memory_of(candidates_from_rows([layout]), 0, training_job(asked, load_profile("deepspeed")), hardware(gpus))


def _event(memory, phase):
    return max((m for m in memory.stages[0].moments if m.phase == phase), key=lambda step: step.allocated_bytes)


@pytest.mark.parametrize(("zero_stage", "offload"), [(2, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_no_gradient_outlives_its_reduction_where_the_optimizer_is_on_the_host(zero_stage, offload, micro_batches):
    memory = _memory(zero_stage, offload, micro_batches=micro_batches)
    assert _event(memory, "optimizer step").items.gradients == 0
    # The fresh one of the matrix at work is on the device: down_proj, 64 x 128 elements of 2 bytes.
    assert _event(memory, "backward").items.gradients <= 2 * 64_000


def test_stage_one_makes_all_gradients_before_any_is_sent():
    assert _event(_memory(1, 1), "backward").items.gradients >= 2 * (PARAMETERS - 64_000)


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_what_is_gathered_and_on_its_way_is_communication_and_gradients_are_what_is_kept(zero_stage):
    items = _event(_memory(zero_stage, 0, gpus=4), "backward").items
    # A quarter of all, and the fresh one of the largest matrix.
    assert items.gradients <= 2 * (PARAMETERS / 4 + 64_000)
    assert items.communication > BUCKET


@pytest.mark.parametrize(
    ("zero_stage", "offload", "micro_batches", "each"),
    # The fp32 copy, its gradient and two events: 16 bytes. Beside them stage 3 holds 16-bit gradients, and the weights
    # where they are sent too; stage 2 updated weights in 16 bits, and 16-bit gradients where there are several to add.
    [(2, 1, 1, 18), (2, 1, 4, 20), (3, 1, 1, 18), (3, 2, 1, 20)],
)
def test_the_host_holds_what_the_device_does_not(zero_stage, offload, micro_batches, each):
    host = _memory(zero_stage, offload, gpus=2, micro_batches=micro_batches).host_bytes
    assert host == pytest.approx(each * PARAMETERS / 2, abs=40 * each)


def test_gradients_are_added_up_in_a_buffer_of_the_largest_tensor_and_sent_by_way_of_fp64():
    step, root = (_event(_memory(2, 1), phase) for phase in ("optimizer step", "root gradient reduction"))
    assert step.items.communication == 2 * 64_000
    assert root.items.communication == BUCKET + 2 * 64_000 + 8 * 64_000

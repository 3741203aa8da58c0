"""What several operations of a layer keep alike."""

from dataclasses import replace

import pytest

from plimsoll.planners.architecture import OperationKind
from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.memory.repeated_saves import repeated_saves
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import question, small_llama

HIDDEN = 64


@pytest.fixture
def block():
    return training_job(question(model=small_llama()), load_profile("accelerate")).layers[0].block


def test_norms_inputs_outputs_and_attention_s_output_come_more_than_once(block):
    # Two norms: their input in fp32 twice, the output for q, k, v or for gate and up; attention's output twice.
    again = repeated_saves(block, load_profile("accelerate").kernels, attention="flash", element_bytes=2)
    assert again.once_bytes == HIDDEN * (2 * 4 + 2 * 2 + 2)
    assert again.again_bytes == HIDDEN * (2 * 4 + (2 + 1) * 2 + 2)


def test_autocast_makes_every_matrix_a_copy_of_its_own(block):
    again = repeated_saves(block, load_profile("ddp").kernels, attention="flash", element_bytes=2, autocast=True)
    assert again.again_bytes == HIDDEN * (2 * 4 + 2)


def test_a_norm_in_one_kernel_keeps_its_input_once(block):
    kernels = replace(load_profile("accelerate").kernels, norm_keeps_fp32=False)
    assert repeated_saves(block, kernels, attention="flash", element_bytes=2).once_bytes == HIDDEN * (2 * 2 + 2)


def test_beside_adapters_the_feed_forward_s_input_is_sent_again(block):
    # Its two first matrices' adapters are too far apart for the first copy to wait for the second.
    kernels = load_profile("accelerate").kernels
    names = frozenset(op.name for op in block.operations if op.kind is OperationKind.MATMUL)
    alone, adapted = (
        repeated_saves(block, kernels, attention="flash", element_bytes=2, learning=learning)
        for learning in (None, names)
    )
    assert alone.once_bytes - adapted.once_bytes == HIDDEN * 2


def test_eager_attention_keeps_its_output_for_the_next_matrix_alone(block):
    kernels = load_profile("accelerate").kernels
    flash, eager = (repeated_saves(block, kernels, attention=kind, element_bytes=2) for kind in ("flash", "eager"))
    assert flash.again_bytes - eager.again_bytes == HIDDEN * 2


def test_casts_of_adapters_come_once_each(block):
    kernels = load_profile("accelerate").kernels
    names = frozenset(op.name for op in block.operations if op.kind is OperationKind.MATMUL)
    casts = {"attention_input": 3, "attention_context": 1}
    again = repeated_saves(block, kernels, attention="flash", element_bytes=2, learning=names, adapter_casts=casts)
    # Both norms' inputs are left, in fp32, for the square and for the product.
    assert again.once_bytes == again.again_bytes == HIDDEN * 2 * 4

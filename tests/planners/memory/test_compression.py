from dataclasses import replace

import numpy as np
import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.memory.compression import saved_routing_bytes, sent_fraction
from plimsoll.planners.training.planning import plan_training
from tests.planners.factories import question, small_llama
from tests.planners.training_cases import job, one_layout

# Four layers of q and o 64 x 64, k and v 32 x 64, gate and up 128 x 64, down 64 x 128 and two norms of 64; embedding
# and head 1,000 x 64; last norm of 64.
ELEMENTS = 4 * (2 * 4096 + 2 * 2048 + 3 * 8192 + 128) + 2 * 64_000 + 64


def compressed(framework: str, compression: str):
    return replace(job(framework, model=small_llama()), gradient_compression=compression)


@pytest.mark.parametrize(
    ("framework", "compression", "fraction"),
    # DDP's gradients are fp32 as its weights are, DeepSpeed's bf16.
    [("ddp", "none", 1.0), ("ddp", "bf16", 0.5), ("ddp", "fp16", 0.5), ("deepspeed", "1-bit", 1 / 16)],
)
def test_casts_and_signs_are_as_narrow_as_their_format(framework: str, compression: str, fraction: float):
    assert sent_fraction(compressed(framework, compression)) == fraction


def test_powersgd_sends_two_vectors_for_a_matrix_and_norms_whole():
    sent = 4 * (2 * 128 + 2 * 96 + 3 * 192 + 128) + 2 * 1064 + 64
    assert sent_fraction(compressed("ddp", "powersgd")) == sent / ELEMENTS


@pytest.mark.parametrize(
    ("compression", "ranks", "bytes_an_element"),
    [("bf16", 8, 0.0), ("powersgd", 8, 4.0), ("powersgd", 1, 0.0), ("1-bit", 8, 4.0 * (1 + 1 / 8)), ("1-bit", 1, 0.0)],
)
def test_errors_are_remembered_in_fp32(compression: str, ranks: int, bytes_an_element: float):
    layouts = one_layout(data_parallel=ranks)
    saved_routing = saved_routing_bytes(layouts, compressed("ddp", compression), np.array([[1000.0]]))
    assert float(saved_routing.max()) == 1000 * bytes_an_element


def test_compressed_gradients_are_planned_where_every_rank_has_them_whole():
    asked = question(framework="reference", model=small_llama(), gpus=8, layout={"data_parallel": 8})
    plan = plan_training(replace(asked, gradient_compression="powersgd")).plan
    assert plan.layout.zero_stage == 0


@pytest.mark.parametrize(
    ("framework", "compression"), [("megatron", "bf16"), ("ddp", "1-bit"), ("deepspeed", "powersgd"), ("ddp", "zip")]
)
def test_a_compression_that_a_stack_lacks_is_refused(framework: str, compression: str):
    with pytest.raises(InvalidQuestion) as caught:
        plan_training(question(framework=framework, gradient_compression=compression))
    assert caught.value.pointer == "/training/gradient_compression"

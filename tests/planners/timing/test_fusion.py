import pytest

from plimsoll.planners.timing.fusion import FUSED, saved_bytes
from tests.planners.factories import gpt, llama

LAYER = llama().layers[0]
OTHERS = tuple(one for one in LAYER.operations if one.kind.value in ("norm", "rotary", "gated_activation", "add"))


def test_fused_kernels_save_what_a_layer_of_llama_3_moves_between_operations():
    # Two norms of 4,096 features at 32 bytes each; rotated 4,096 + 1,024 at 16, and 2 x 14,336 of the gate's at 2.
    assert saved_bytes(OTHERS, LAYER, "fused", "eager") == (2 * 4096 * 32, 5120 * 16 + 28672 * 2)


def test_fms_acceleration_s_kernels_leave_the_gated_activation_alone():
    assert saved_bytes(OTHERS, LAYER, "foak", "eager") == (2 * 4096 * 32, 5120 * 16)


def test_eager_kernels_move_what_the_measured_ones_saved():
    assert saved_bytes(OTHERS, LAYER, "eager", "compiled") == (-2 * 4096 * 32, -(5120 * 16 + 28672 * 2))


@pytest.mark.parametrize("kernels", [None, "eager"])
def test_the_kernels_that_were_measured_save_nothing(kernels):
    assert saved_bytes(OTHERS, LAYER, kernels, "eager") == (0.0, 0.0)


def test_a_layer_norm_is_one_kernel_already():
    block = gpt().layers[0]
    others = tuple(one for one in block.operations if one.kind.value in ("norm", "activation", "add"))
    assert saved_bytes(others, block, "fused", "eager") == (0.0, 0.0)


def test_the_loss_saves_34_bytes_a_logit_over_both_passes():
    # Three times what the forward pass is counted with.
    head = llama().head
    saved = saved_bytes(tuple(one for one in head.operations if one.kind.value == "loss"), head, "compiled", "eager")
    assert 3 * saved[1] == pytest.approx(34 * 128256)


def test_each_choice_of_kernels_fuses_all_that_eager_ones_do():
    assert all(kinds >= FUSED["eager"] for kinds in FUSED.values())
    assert FUSED["foak"] < FUSED["fused"]

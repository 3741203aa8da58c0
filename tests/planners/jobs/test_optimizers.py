import pytest

from plimsoll.planners.ground.errors import UnknownName
from plimsoll.planners.jobs.optimizers import optimizer_kind
from tests.planners.factories import LLAMA_7B, llama
from tests.planners.training_cases import memory


@pytest.mark.parametrize(
    ("optimizer", "bytes_a_parameter"),
    # The textbook's fp32 copy (4) and its moments: two, one or none of 4 bytes; 8-bit: 2 x (1 + 4 / 256).
    [("adamw", 12), ("lion", 8), ("sgd-momentum", 8), ("sgd", 4), ("adamw-8bit", 4 + 2 * (1 + 4 / 256))],
)
def test_states_a_parameter(optimizer: str, bytes_a_parameter: float):
    model = llama(LLAMA_7B)
    items = memory(model=model, optimizer=optimizer).items
    assert items.optimizer / model.parameters == pytest.approx(bytes_a_parameter, rel=1e-6)


def test_adafactor_remembers_rows_and_columns():
    # A matrix of m x n costs m + n numbers, a vector of n costs n.
    model = llama(LLAMA_7B)
    items = memory(model=model, optimizer="adafactor").items
    per_layer = 4 * (4096 + 4096) + 2 * (11008 + 4096) + (4096 + 11008) + 2 * 4096
    root = 2 * (32000 + 4096) + 4096
    assert items.optimizer == pytest.approx(4 * model.parameters + 4 * (32 * per_layer + root), abs=64)


def test_muon_has_one_moment_for_hidden_matrices_and_two_elsewhere():
    model = llama(LLAMA_7B)
    elsewhere = 2 * 32000 * 4096 + 65 * 4096
    items = memory(model=model, optimizer="muon").items
    assert items.optimizer == pytest.approx(4 * model.parameters + 4 * (model.parameters + elsewhere), abs=64)


def test_paged_states_stand_on_the_host():
    model = llama(LLAMA_7B)
    paged = memory(model=model, optimizer="paged-adamw")
    assert paged.items.optimizer == 4 * model.parameters
    assert paged.host_bytes == 8 * model.parameters


def test_the_scales_of_paged_eight_bits_stay_on_the_device():
    model = llama(LLAMA_7B)
    paged = memory(model=model, optimizer="paged-adamw-8bit")
    assert paged.items.optimizer == pytest.approx((4 + 2 * 4 / 256) * model.parameters)
    assert paged.host_bytes == 2 * model.parameters


def test_lion_s_moment_is_in_fp32_beside_parameters_of_16_bits():
    # As traced with bitsandbytes' Lion: 218.5 MiB of Gemma 3's parameters in bf16 had 437.0 of states.
    items = memory("accelerate", model=llama(LLAMA_7B), optimizer="lion", precision="bf16").items
    assert items.optimizer == pytest.approx(2 * items.parameters, rel=1e-3)


def test_an_unknown_optimizer_lists_the_near_ones():
    with pytest.raises(UnknownName, match="adamw") as caught:
        optimizer_kind("adamww")
    assert caught.value.pointer == "/training/optimizer"


def test_own_dtypes_replace_the_stack_s():
    # bf16 gradients in Megatron: 2 instead of 4; bf16 moments: 2 x 2 instead of 2 x 4, beside the copy's 4.
    model = llama(LLAMA_7B)
    items = memory("megatron", model=model, gradient_dtype="bf16", optimizer_state_dtype="bf16").items
    assert items.optimizer == 8 * model.parameters

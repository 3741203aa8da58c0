import pytest

from plimsoll.planners.architecture import Part
from plimsoll.planners.ground.errors import UnknownName
from plimsoll.planners.jobs.optimizers import optimizer_kind
from plimsoll.planners.questions import Lora
from tests.planners.factories import LLAMA_7B, llama, small_mixtral
from tests.planners.training_cases import job, memory

NORMS = 65 * 4096


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
    # But for those of the norms: bitsandbytes pages none of fewer than 100,000 elements.
    assert paged.items.optimizer == 4 * model.parameters + 8 * NORMS
    assert paged.host_bytes == 8 * (model.parameters - NORMS)


def test_adapters_are_too_small_to_be_paged():
    # Traced: SmolLM 3 of 384 features, LoRA, two ranks a shard: 31.1 MiB of states on the device, none on the host.
    asked = {"model": llama(LLAMA_7B), "method": "lora", "lora": Lora(target_modules=("q_proj",)), "precision": "bf16"}
    paged = memory("accelerate", optimizer="paged-adamw", **asked)
    assert paged.items.optimizer == 8 * 32 * 2 * 16 * 4096


def test_the_scales_of_paged_eight_bits_stay_on_the_device():
    model = llama(LLAMA_7B)
    paged = memory(model=model, optimizer="paged-adamw-8bit")
    assert paged.items.optimizer == pytest.approx((4 + 2 * 4 / 256) * model.parameters + 2 * NORMS)
    assert paged.host_bytes == 2 * (model.parameters - NORMS)


def test_torch_s_muon_has_one_moment_of_matrices_alone_and_two_of_stacked_experts():
    # Traced: Phi 3.5 MoE under DDP, Muon: 10.3 % of the peak were second moments of experts.
    layer = small_mixtral().layers[0]
    (experts, *_), (query, *_) = (
        [weight for weight in layer.weights if weight.part is part] for part in (Part.EXPERT, Part.ATTENTION)
    )
    muon = optimizer_kind("muon")
    assert [muon.moments_of(weight) for weight in (experts, query)] == [1, 1]
    of_ddp = job("ddp", optimizer="muon").optimizer
    assert [of_ddp.moments_of(weight) for weight in (experts, query)] == [2, 1]


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

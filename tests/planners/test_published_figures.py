"""The figures that practitioners' notes quote for training, each under its own name.

Sizes are decimal GB unless a name says GiB. Where notes quote a wrong figure the
right one stands here, with the reason.
"""

from __future__ import annotations

import pytest

from plimsoll.planners.formats import tensor_bytes
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.memory.activations import saved_bytes
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.timing.communication import communication_of
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.timing.step import train_flops_per_token
from plimsoll.planners.training import resilience
from plimsoll.planners.training.planning import plan_training
from tests.planners.factories import LLAMA_3_70B, LLAMA_7B, gpt, hardware, llama, question
from tests.planners.training_cases import job, memory, one_layout

GB = 1e9


def states_gb(parameters: float, *, precision: str = "bf16-mixed", ranks: int = 1, zero_stage: int = 0) -> float:
    """Return parameters, gradients and optimizer states of the textbook, scaled to so many parameters."""
    model = llama(LLAMA_7B)
    items = (
        memory(model=model, precision=precision, layout={"data_parallel": ranks, "zero_stage": zero_stage})
        .stages[0]
        .items
    )
    return (items.parameters + items.gradients + items.optimizer) / model.parameters * parameters / GB


def test_six_billion_parameters_in_fp16_take_11_18_gib():
    # 6e9 x 2 / 1024^3 = 11.1759.
    assert tensor_bytes("fp16", (6_000_000_000,)) / GIB == pytest.approx(11.18, abs=0.005)


def test_six_billion_parameters_in_int8_take_half_and_nf4_half_a_byte_and_scales():
    # 6e9 x 1 and 4 bytes of scale; 6e9 / 2 and one fp32 scale for each 64: 3e9 + 6e9 / 64 x 4 = 3.375e9.
    assert tensor_bytes("int8", (6_000_000_000,)) == pytest.approx(6e9, abs=4)
    assert tensor_bytes("nf4", (6_000_000_000,)) == 3_375_000_000


def test_seven_billion_parameters_with_adamw_take_112_gb():
    # 14 parameters + 14 gradients + 28 + 28 + 28 (copy and two moments) = 112.
    assert states_gb(7e9) == pytest.approx(112.0)


def test_seven_billion_parameters_split_into_14_14_and_84_gb():
    model = llama(LLAMA_7B)
    items = memory(model=model, layout={}).items
    per_parameter = [items.parameters, items.gradients, items.optimizer]
    assert [value / model.parameters * 7e9 / GB for value in per_parameter] == pytest.approx([14.0, 14.0, 84.0])


@pytest.mark.parametrize(("zero_stage", "gigabytes"), [(0, 112.0), (1, 38.5), (2, 26.25), (3, 14.0)])
def test_zero_on_eight_gpus_leaves_of_seven_billion_parameters(zero_stage: int, gigabytes: float):
    # Stage 1: 28 + 84 / 8 = 38.5. Stage 2: 14 + 98 / 8 = 26.25. Stage 3: 112 / 8 = 14.
    assert states_gb(7e9, ranks=8, zero_stage=zero_stage) == pytest.approx(gigabytes)


@pytest.mark.parametrize(("zero_stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_on_64_gpus_leaves_of_7_5_billion_parameters(zero_stage: int, gigabytes: float):
    # Rajbhandari et al. 2020, figure 1, printed to one digit: 120; 30 + 90 / 64; 15 + 105 / 64; 120 / 64.
    assert states_gb(7.5e9, ranks=64, zero_stage=zero_stage) == pytest.approx(gigabytes, abs=0.06)


def test_eight_billion_parameters_mixed_take_48_16_and_64_gb():
    # 6 bytes for weights and their fp32 copy, 2 for gradients, 8 for moments: 48 + 16 + 64 = 128.
    states = load_profile("reference").states["bf16-mixed"]
    parts = [states.parameter + states.master, states.gradient, 2 * states.moment]
    assert [8 * part for part in parts] == [48, 16, 64]
    assert states_gb(8e9) == pytest.approx(128.0)


def test_pure_bf16_takes_eight_bytes_a_parameter():
    assert states_gb(8e9, precision="bf16") == pytest.approx(64.0)


def test_lora_keeps_its_base_in_two_bytes_and_counts_adapters_exactly():
    # Adapters of rank 16 on all seven matrices of LLaMA-7B: 16 x (4 x 8192 + 3 x 15104) x 32 = 39,976,960.
    model = llama(LLAMA_7B)
    items = memory(model=model, method="lora").items
    adapters = 39_976_960
    assert job(model=model, method="lora").trainable_parameters == adapters
    assert items.parameters == 2 * model.parameters + 2 * adapters
    assert items.gradients + items.optimizer == (2 + 4 + 8) * adapters


def test_qlora_keeps_its_base_in_half_a_byte():
    model = llama(LLAMA_7B)
    items = memory(model=model, method="qlora").items
    assert items.parameters == model.parameters // 2 + 2 * 39_976_960


def test_seventy_billion_parameters_take_140_140_and_840_gb():
    # 2, 2 and 12 bytes; the 840 GB hold the fp32 copy.
    model = llama(LLAMA_7B)
    items = memory(model=model).items
    scaled = [part / model.parameters * 70e9 / GB for part in (items.parameters, items.gradients, items.optimizer)]
    assert scaled == pytest.approx([140.0, 140.0, 840.0])


def test_live_activations_of_eight_sequences_of_4096_are_half_a_gib():
    # 8 x 4,096 tokens x 8,192 features x 2 B = 0.5 GiB: one layer's input at full recompute.
    model = llama(LLAMA_3_70B)
    layout = {"micro_batch_size": 8, "recompute": 2}
    whole = memory(model=model, sequence_length=4096, layout=layout).items.activations
    fewer = llama({**LLAMA_3_70B, "num_hidden_layers": 79})
    less = memory(model=fewer, sequence_length=4096, layout=layout).items.activations
    assert (whole - less) / GIB == pytest.approx(0.5)


def test_activations_of_a_7b_with_eager_attention_are_28_5_gib():
    # 2,048 x 4,096 x (34 + 5 x 32 x 2,048 / 4,096) x 32 = 8,388,608 x 114 x 32 = 30,601,641,984 B.
    kept = saved_bytes(gpt().layers[0], load_profile("reference").kernels, attention="eager", element_bytes=2)
    layer = 2048 * (kept.sequence_bytes + kept.tensor_bytes + kept.score_bytes * 2048)
    assert layer * 32 == 30_601_641_984
    assert layer * 32 / GIB == pytest.approx(28.5)


def test_activations_of_a_7b_with_flash_attention_are_34_sbh():
    # The same without scores: 2,048 x 4,096 x 34 x 32 = 8.5 GiB.
    kept = saved_bytes(gpt().layers[0], load_profile("reference").kernels, attention="flash", element_bytes=2)
    assert 2048 * (kept.sequence_bytes + kept.tensor_bytes) * 32 == 2048 * 4096 * 34 * 32


def test_activations_of_a_gated_grouped_flash_layer_are_33_5_sbh():
    # 12 + 4k/a + 6f/h with k/a = 1/4 and f/h = 3.5 (Llama 3 8B): 12 + 1 + 21 = 34; with k/a = 1/8: 33.5.
    kernels = load_profile("reference").kernels
    eight = saved_bytes(llama().layers[0], kernels, attention="flash", element_bytes=2)
    assert eight.sequence_bytes + eight.tensor_bytes == 34 * 4096
    seventy = saved_bytes(llama(LLAMA_3_70B).layers[0], kernels, attention="flash", element_bytes=2)
    assert seventy.sequence_bytes + seventy.tensor_bytes == 33.5 * 8192


def tensor_and_pipeline_table(**degrees: int):
    model = gpt()
    asked = job(model=model, sequence_length=2048, global_batch_size=8)
    return communication_of(one_layout(**degrees), 0, asked, hardware(8), load_efficiency())


def test_tensor_parallelism_sends_8_bsh_a_layer():
    # Four all-reduces of b·s·h elements of 2 bytes: 8 x 1 x 2,048 x 4,096.
    row = next(row for row in tensor_and_pipeline_table(tensor_parallel=8) if row.group == "tensor")
    assert row.bytes_per_layer == 8 * 1 * 2048 * 4096
    assert row.calls_per_step == 4 * 32 * 8


def test_pipeline_parallelism_sends_2_bsh_a_boundary():
    row = next(row for row in tensor_and_pipeline_table(pipeline_parallel=8) if row.group == "pipeline")
    assert row.bytes_per_layer == 2 * 1 * 2048 * 4096


def test_data_parallelism_sends_24_h_squared_a_layer():
    # Twice the 12·h² parameters of a plain layer; its norms and biases, 13·h elements, add 26·h.
    # The 16·h² often quoted is the MLP alone.
    row = next(row for row in tensor_and_pipeline_table(data_parallel=8) if row.group == "data")
    assert row.bytes_per_layer == 24 * 4096**2 + 26 * 4096


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("q_proj", "column"),
        ("k_proj", "column"),
        ("v_proj", "column"),
        ("o_proj", "row"),
        ("gate_proj", "column"),
        ("up_proj", "column"),
        ("down_proj", "row"),
    ],
)
def test_matrices_split_by_column_then_row(name: str, split: str):
    answer = plan_training(question(framework="megatron", layout={"tensor_parallel": 2}))
    weight = next(weight for weight in answer.plan.sharding.weights if f".{name}." in weight.name)
    # Column splits divide the outputs (dimension 0 of [out, in]), row splits the inputs.
    axis = 0 if split == "column" else 1
    assert (weight.split, weight.axis) == (split, axis)
    assert weight.local_shape[axis] * 2 == weight.shape[axis]


def test_gpt3_on_1024_a100s_takes_34_days():
    # 8·N·D counts full recompute (Narayanan et al. 2021, equation 4): 8 x 175e9 x 300e9 / (1,024 x 140e12) / 86,400.
    forward_and_backward_and_forward = 8 * 175e9 * 300e9
    assert forward_and_backward_and_forward / (1024 * 140e12) / 86_400 == pytest.approx(34, abs=0.2)


def test_training_takes_six_operations_a_parameter_and_token():
    # Kaplan's 6·N without the embedding, plus attention: 12·L·h·(s + 1) / 2 for a causal mask.
    model = llama(LLAMA_7B)
    asked = job(model=model, sequence_length=2048)
    matrices = model.parameters - 32000 * 4096 - 65 * 4096
    assert train_flops_per_token(asked) == pytest.approx(6 * matrices + 12 * 32 * 4096 * 2049 / 2)


def test_eight_percent_a_month_is_0_27_percent_a_day():
    assert resilience.gpu_failures_per_day(0.08) == pytest.approx(0.0027, abs=0.00005)


def test_a_thousand_gpus_fail_on_93_percent_of_days():
    # 1 - (1 - 0.08 / 30)^1000 = 0.9308.
    assert resilience.probability_of_failure_per_day(1000, 0.08) == pytest.approx(0.93, abs=0.005)

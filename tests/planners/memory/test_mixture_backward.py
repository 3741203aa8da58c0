"""A small Mixtral: 64 features, experts of 32, two of them for each token: tokens are sent as 128 features."""

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.memory.activations import saved_bytes
from plimsoll.planners.memory.mixture_backward import (
    beside_combined_tokens,
    beside_weighed_outputs,
    grouped_sent_bytes,
    live_at_combine,
    live_at_expert_reduction,
    live_at_experts_first_product,
    live_at_experts_last_product,
)
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import small_llama, small_mixtral

ACCELERATE = load_profile("accelerate").kernels
FSDP2 = load_profile("fsdp2").kernels
MEGATRON = load_profile("megatron").kernels
MIXTRAL = small_mixtral(intermediate_size=32)
DISPATCHED = 2 * 64


def kept(block):
    return saved_bytes(block, ACCELERATE, attention="flash", element_bytes=2)


def test_three_gradients_of_the_sent_tokens_meet_as_they_are_scattered():
    block = MIXTRAL.layers[0]
    found, layer = live_at_combine(block, kept(block), ACCELERATE, 2, 2), kept(block)
    assert found.dispatched_bytes - layer.dispatched_bytes == 3 * 2 * DISPATCHED
    assert found.sequence_bytes - layer.sequence_bytes == 2 * 64  # the residual's
    assert found.expert_bytes == layer.expert_bytes


def test_at_the_first_product_only_its_output_s_gradient_is_left_of_the_experts():
    found = live_at_experts_first_product(MIXTRAL.layers[0], ACCELERATE, attention="flash", element_bytes=2)
    assert found.expert_bytes == 2 * (64 + 64)  # gate and up, 32 features for each of two experts
    assert found.dispatched_bytes == 2 * 2 * DISPATCHED  # the sent tokens and their gradient


def test_four_tensors_of_sent_tokens_stand_beside_a_second_run_that_brings_them_back():
    beside = beside_combined_tokens(MIXTRAL.layers[0], FSDP2, 2)
    assert beside.dispatched_bytes == 4 * 2 * DISPATCHED
    assert beside.sequence_bytes == 2 * 2 * 64  # residual and gradient


def test_megatron_holds_two_of_its_own_tokens_and_two_of_its_experts_outputs():
    beside = beside_combined_tokens(MIXTRAL.layers[0], MEGATRON, 2)
    assert beside.dispatched_bytes == 2 * 2 * DISPATCHED
    assert beside.sequence_bytes == 2 * 2 * DISPATCHED
    assert grouped_sent_bytes(MIXTRAL.layers[0], MEGATRON, 2) == 2 * DISPATCHED
    assert grouped_sent_bytes(MIXTRAL.layers[0], FSDP2, 2) == 0


def test_megatron_differentiates_its_sum_with_two_gradients():
    block = MIXTRAL.layers[0]
    found = live_at_combine(block, kept(block), MEGATRON, 2, 2)
    assert found.dispatched_bytes - kept(block).dispatched_bytes == 2 * 2 * DISPATCHED


def test_at_narrow_experts_last_product_its_outputs_gradient_stands_and_the_outputs_do_not():
    found = live_at_experts_last_product(MIXTRAL.layers[0], FSDP2, attention="flash", element_bytes=2)
    assert found.dispatched_bytes == 2 * (DISPATCHED + DISPATCHED)  # the tokens sent, and the gradient
    # Two experts of 32 features: gate twice, the other half, their product and its gradient.
    assert found.expert_bytes == 2 * 5 * 64


def test_at_wide_experts_halves_two_gradients_more_than_what_is_kept_meet():
    block = small_mixtral(intermediate_size=128).layers[0]  # two experts: 256 features, more than the 128 sent
    found = live_at_experts_last_product(block, FSDP2, attention="flash", element_bytes=2)
    assert found.dispatched_bytes == 2 * DISPATCHED
    assert found.expert_bytes == 2 * (4 + 2) * 256


def test_transformers_5_s_experts_work_at_once_under_accelerate_as_under_fsdp2():
    # Traced: OLMoE of 64 experts holds two gradients of 9,633 x 8 x 2,392 more than a layer keeps, 703 MiB in 16 bits.
    block = MIXTRAL.layers[0]
    found, of_fsdp2 = (
        live_at_experts_last_product(block, kernels, attention="flash", element_bytes=2)
        for kernels in (ACCELERATE, FSDP2)
    )
    assert (found.dispatched_bytes, found.expert_bytes) == (of_fsdp2.dispatched_bytes, of_fsdp2.expert_bytes)


def test_neither_a_dense_layer_nor_experts_in_turn_have_one_last_product():
    in_turn = load_profile("accelerate", "eager").kernels  # transformers before 5
    for block, kernels in ((small_llama().layers[0], FSDP2), (MIXTRAL.layers[0], in_turn)):
        assert live_at_experts_last_product(block, kernels, attention="flash", element_bytes=2) is None


def test_as_experts_are_reduced_nothing_of_them_is_left_but_the_gradient_of_what_they_were_sent():
    block = MIXTRAL.layers[0]
    found, layer = live_at_expert_reduction(block, kept(block), 2), kept(block)
    assert found.dispatched_bytes + found.expert_bytes == 0
    assert found.sequence_bytes - layer.sequence_bytes == 2 * 2 * 64  # beside the residual's


def test_outputs_weighed_in_fp32_stand_twice_beside_a_forward_pass():
    kernels = load_profile("accelerate").kernels
    config = dict(catalogue().model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16").config)
    layers = describe_config(config, name="mixture").layers
    block = next(layer for layer in layers if layer.kind == "experts_layer")
    # Six experts for each token of 2,688 features; of the shared expert's 3,712 its input and its product.
    outputs, shared = 2 * 4 * 6 * 2688, 2 * 2 * 3712
    assert beside_weighed_outputs(block, kernels, 2) == (outputs - shared, outputs + 2 * (2 * 6 * 2688 + 2688))
    # Two experts of four for each of 64 features: transformers leaves Mixtral's scores in fp32, and casts Qwen3's.
    both = 2 * 4 * 2 * 64
    assert beside_weighed_outputs(small_mixtral().layers[0], kernels, 2) == (both, both + 2 * (2 * 2 * 64 + 64))
    qwen = small_mixtral(model_type="qwen3_moe", moe_intermediate_size=128, num_experts=4)
    assert beside_weighed_outputs(qwen.layers[0], kernels, 2) == (0, 0)
    assert beside_weighed_outputs(small_llama().layers[0], kernels, 2) == (0, 0)


def test_a_dense_layer_has_none_of_these_moments():
    block = small_llama().layers[0]
    events = (
        live_at_combine(block, kept(block), ACCELERATE, 2, 2),
        beside_combined_tokens(block, FSDP2, 2),
        live_at_expert_reduction(block, kept(block), 2),
        live_at_experts_first_product(block, ACCELERATE, attention="flash", element_bytes=2),
    )
    for found in events:
        assert found.sequence_bytes + found.tensor_bytes + found.gathered_bytes + found.dispatched_bytes == 0

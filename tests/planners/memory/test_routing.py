"""A small Mixtral of eight experts, two of them for each token."""

from plimsoll.planners.memory.routing import latest_routing_bytes, routing_bytes
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import small_llama, small_mixtral

FSDP2, MEGATRON = load_profile("fsdp2").kernels, load_profile("megatron").kernels
MIXTURE, DENSE = small_mixtral(num_local_experts=8, num_experts_per_tok=2).layers[0], small_llama().layers[0]


def test_transformers_keeps_all_experts_scores_in_fp32_and_four_indices_of_each_that_is_chosen():
    assert routing_bytes(MIXTURE, FSDP2, 2) == 8 * 4 + 2 * (4 * 8 + 2)
    assert latest_routing_bytes(MIXTURE, FSDP2, 2) == 0


def test_megatron_keeps_the_order_of_all_experts_tokens_and_remembers_their_scores_and_map():
    assert routing_bytes(MIXTURE, MEGATRON, 2) == 8 * 8 + 2 * (2 * 8 + 4 + 3 * 2)
    assert latest_routing_bytes(MIXTURE, MEGATRON, 2) == 8 * (2 + 1)


def test_a_dense_layer_routes_nothing():
    for kernels in (FSDP2, MEGATRON):
        assert routing_bytes(DENSE, kernels, 2) == latest_routing_bytes(DENSE, kernels, 2) == 0

"""A small Mixtral of eight experts, two of them for each token."""

from dataclasses import replace

from plimsoll.planners.architecture import Part, Tensor
from plimsoll.planners.memory.routing import latest_routing_bytes, routing_bytes, save_router_input, score_bytes
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import small_llama, small_mixtral

FSDP2, MEGATRON = load_profile("fsdp2").kernels, load_profile("megatron").kernels
MIXTURE, DENSE = small_mixtral(num_local_experts=8, num_experts_per_tok=2).layers[0], small_llama().layers[0]


def test_transformers_keeps_all_experts_scores_in_fp32_and_four_indices_of_each_that_is_chosen():
    assert routing_bytes(MIXTURE, FSDP2, 2) == 8 * 4 + 2 * (4 * 8 + 2)
    assert latest_routing_bytes(MIXTURE, FSDP2, 2) == 0


def test_megatron_keeps_scores_and_map_of_all_experts_and_remembers_both():
    assert routing_bytes(MIXTURE, MEGATRON, 2) == 8 * (2 + 1) + 2 * (2 * 8 + 4 + 3 * 2)
    assert latest_routing_bytes(MIXTURE, MEGATRON, 2) == 8 * (2 + 1)


def balanced_by_a_bias(block):
    (router,) = (weight for weight in block.weights if weight.part is Part.ROUTER)
    bias = replace(router, name="model.layers.{layer}.mlp.gate.e_score_correction_bias", shape=(8,))
    return replace(block, weights=(*block.weights, bias))


def test_megatron_s_router_that_a_bias_balances_keeps_sigmoids_and_scores_in_fp32():
    # Of all experts the sigmoid, the scores and the map; of the chosen two indices, three scores and the one that is
    # divided by their sum, which is kept too.
    block = balanced_by_a_bias(MIXTURE)
    assert routing_bytes(block, MEGATRON, 2) == 8 * (4 + 4 + 1) + 2 * (2 * 8 + 3 * 4 + 4) + 4
    assert latest_routing_bytes(block, MEGATRON, 2) == 8 * (4 + 1)
    assert score_bytes(block, 2) == 4
    assert score_bytes(MIXTURE, 2) == 2


def test_megatron_s_softmax_of_all_experts_is_kept_in_fp32():
    block = replace(MIXTURE, tensors=(*MIXTURE.tensors, Tensor(name="shared_score", width=1)))
    assert routing_bytes(block, MEGATRON, 2) == 8 * (2 + 1 + 4) + 2 * (2 * 8 + 3 * 2)


def test_a_dense_layer_routes_nothing():
    for kernels in (FSDP2, MEGATRON):
        assert routing_bytes(DENSE, kernels, 2) == latest_routing_bytes(DENSE, kernels, 2) == 0


def test_a_router_in_fp32_keeps_a_copy_of_its_input_where_it_learns():
    in_fp32 = replace(MIXTURE, operations=tuple(replace(op, in_fp32=op.name == "router") for op in MIXTURE.operations))
    for block, learning, expected in ((in_fp32, None, 6.0), (in_fp32, frozenset(), 2.0), (MIXTURE, None, 2.0)):
        saved = {"feed_forward_input": 2.0}
        save_router_input(block, saved, learning)
        assert saved == {"feed_forward_input": expected}

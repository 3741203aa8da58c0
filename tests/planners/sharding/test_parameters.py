from plimsoll.planners.sharding.parameters import joined, updated_as_one
from tests.planners.factories import small_llama, small_mixtral


def names(parameters):
    return [[weight.name.split(".")[-2] for weight in one] for one in parameters]


def test_megatron_s_layer_has_four_matrices_and_two_norms():
    (layer,) = small_llama().layers
    matrices = [one for one in names(joined(layer.weights)) if "norm" not in one[0]]
    assert matrices == [["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj", "up_proj"], ["down_proj"]]


def test_queries_keys_and_values_are_updated_apart():
    (layer,) = small_llama().layers
    assert [one for one in names(updated_as_one(layer.weights)) if len(one) > 1] == [["gate_proj", "up_proj"]]
    assert ["k_proj"] in names(updated_as_one(layer.weights))


def test_an_expert_s_inner_matrices_are_one_and_its_router_is_none_of_them():
    (layer,) = small_mixtral().layers
    experts = [one for one in joined(layer.weights) if one[0].experts > 1]
    assert sorted(len(one) for one in experts) in ([1, 1], [1, 2])
    assert all(weight.experts > 1 for one in experts for weight in one)

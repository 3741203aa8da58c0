"""Models with further layers for multi-token prediction, counted by hand."""

import pytest

from plimsoll.planners.architecture.multi_token import still_assumed, with_multi_token_prediction
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.identity import ByIdentity
from tests.planners.factories import small_llama

# A layer of the small Llama; norms before a layer and behind it, and a matrix from twice 64 features to 64.
LAYER = 36_992
JOINT = 3 * 64 + 2 * 64 * 64


def further(layers=1, **changes):
    model = small_llama(**changes)
    return model, with_multi_token_prediction(ByIdentity(model), layers)


@pytest.mark.parametrize("layers", [1, 2])
def test_each_adds_a_layer_and_what_joins_it(layers):
    model, longer = further(layers)
    assert longer.parameters - model.parameters == layers * (LAYER + JOINT)
    assert (longer.num_layers, longer.multi_token_layers, longer.heads) == (4, layers, 1 + layers)


def test_the_head_is_multiplied_by_for_each_token():
    model, longer = further(2)
    layer = sum(operation.forward_flops_per_token(10.0) for operation in model.layers[-1].operations)
    # A product with 128 x 64 and another with the head of 64 x 1,000, two operations each.
    more = layer + 2 * 2 * 64 * 64 + 2 * 64 * 1000
    assert longer.forward_flops_per_token(10.0) - model.forward_flops_per_token(10.0) == pytest.approx(2 * more)


def test_its_weights_are_named_as_layers_behind_the_last():
    names = [name for name, _ in further()[1].named_weights()]
    assert "model.layers.4.self_attn.q_proj.weight" in names
    assert "model.layers.4.eh_proj.weight" in names
    assert "model.layers.3.eh_proj.weight" not in names


def test_deepseek_v3_gets_what_its_checkpoint_has_beside_the_model():
    # Its README (README_WEIGHTS.md) counts 11.5 billion parameters of the module's own; its last layer has 11,507.3
    # million, and the matrix 2 x 7,168 x 7,168 = 102.8 million.
    found = catalogue().model("deepseek-ai/DeepSeek-V3", pointer="/model")
    model = describe_config(found.config, name=found.id)
    longer = with_multi_token_prediction(ByIdentity(model), 1)
    assert longer.parameters - model.parameters == model.layers[-1].elements + 2 * 7168**2 + 3 * 7168
    assert longer.parameters - model.parameters == pytest.approx(11.5e9, rel=0.01)


def test_that_such_layers_are_left_out_is_said_no_longer():
    model = small_llama()
    announced = describe_config(
        {"model_type": "mimo", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "num_nextn_predict_layers": 1},
        name="mimo",
    )  # fmt: skip
    assert announced.assumptions
    assert not model.assumptions
    assert not with_multi_token_prediction(ByIdentity(announced), 1).assumptions
    assert still_assumed(announced.assumptions, 0) == announced.assumptions

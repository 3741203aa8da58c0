"""Which model's config the dimensions of a Megatron command make."""

import pytest

from plimsoll.service.stacks.megatron.told_model import told_config

DIMENSIONS = {
    "layers": 48,
    "hidden": 2048,
    "heads": 32,
    "head_dim": 128,
    "query_groups": 4,
    "vocabulary": 151936,
    "sequence_length": 4096,
    "intermediate": 6144,
}
EXPERTS = {"experts": 128, "experts_per_token": 8, "expert_intermediate": 768}


@pytest.mark.parametrize(
    ("switches", "family"),
    [
        ({}, "gpt2"),
        ({"is_gated": True}, "llama"),
        ({"is_gated": True, "query_bias": True}, "qwen2"),
        ({"is_gated": True, "query_norm": True}, "qwen3"),
        ({"is_gated": True, **EXPERTS}, "mixtral"),
        ({"is_gated": True, "query_norm": True, **EXPERTS}, "qwen3_moe"),
    ],
)
def test_the_family_is_the_one_with_the_same_layers(switches: dict[str, object], family: str) -> None:
    assert told_config({**DIMENSIONS, **switches})["model_type"] == family


def test_experts_have_their_own_width() -> None:
    config = told_config({**DIMENSIONS, "is_gated": True, "query_norm": True, **EXPERTS})
    assert (config["moe_intermediate_size"], config["num_experts"], config["num_experts_per_tok"]) == (768, 128, 8)


def test_experts_are_as_wide_as_the_feed_forward_and_two_for_a_token_unless_a_command_says_otherwise() -> None:
    config = told_config({**DIMENSIONS, "is_gated": True, "experts": 8})
    assert (config["intermediate_size"], config["num_local_experts"], config["num_experts_per_tok"]) == (6144, 8, 2)


def test_a_gated_feed_forward_is_two_thirds_as_wide_as_a_plain_one() -> None:
    # 4 x 2,048 x 2 / 3 = 5,461, of which the multiple of 64 below is 5,440.
    sizes = {name: value for name, value in DIMENSIONS.items() if name != "intermediate"}
    assert told_config({**sizes, "is_gated": True})["intermediate_size"] == 5440
    assert told_config(sizes)["n_inner"] == 8192

"""Parameter counts worked out by hand, beside the published ones."""

from __future__ import annotations

import pytest

from plimsoll.planners.architecture import Part
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # Embedding and head 2 x 128,256 x 4,096 = 1,050,673,152; a layer: q and o 2 x 4,096^2, k and v
        # 2 x 1,024 x 4,096, feed-forward 3 x 4,096 x 14,336, norms 2 x 4,096 = 218,112,000; 32 of them
        # 6,979,584,000; last norm 4,096.
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        # 2 x 32,000 x 4,096 = 262,144,000; a layer 4 x 4,096^2 + 3 x 4,096 x 11,008 + 2 x 4,096 = 202,383,360;
        # 32 of them 6,476,267,520; last norm 4,096.
        ("meta-llama/Llama-2-7b-hf", 6_738_415_616),
        # 262,144,000 + 32 x 218,112,000 + 4,096: Llama 3's layer with a vocabulary of 32,000.
        ("mistralai/Mistral-7B-v0.1", 7_241_732_096),
        # 2 x 152,064 x 8,192 = 2,491,416,576; a layer: q and o 2 x 8,192^2, k and v 2 x 1,024 x 8,192, biases
        # 8,192 + 2 x 1,024, feed-forward 3 x 8,192 x 29,568, norms 2 x 8,192 = 877,684,736; 80 of them
        # 70,214,778,880; last norm 8,192.
        ("Qwen/Qwen2.5-72B", 72_706_203_648),
        # Tokens 50,257 x 768 and positions 1,024 x 768 = 39,383,808; a layer: QKV 768 x 2,304 + 2,304, output
        # 768^2 + 768, feed-forward 2 x 768 x 3,072 + 3,072 + 768, two norms 4 x 768 = 7,087,872; 12 of them
        # 85,054,464; last norm 1,536. The head is the embedding.
        ("openai-community/gpt2", 124_439_808),
        # Tied: 128,256 x 2,048 = 262,668,288; a layer: q and o 2 x 2,048^2, k and v 2 x 512 x 2,048, feed-forward
        # 3 x 2,048 x 8,192, norms 2 x 2,048 = 60,821,504; 16 of them 973,144,064; last norm 2,048.
        ("meta-llama/Llama-3.2-1B", 1_235_814_400),
    ],
)
def test_the_count_is_the_sum_of_the_shapes(name: str, parameters: int) -> None:
    model = catalogue().model(name)
    assert describe_config(model.config, name=name).parameters == parameters
    assert model.published_parameters == parameters


def test_the_parts_of_llama_3_1_8b() -> None:
    parts = describe_config(catalogue().model("llama-3.1-8b").config, name="8b").parameters_by_part()
    assert parts == {
        Part.EMBEDDING: 525_336_576,  # 128,256 x 4,096
        Part.ATTENTION: 1_342_177_280,  # 32 x (2 x 4,096^2 + 2 x 1,024 x 4,096)
        Part.FEED_FORWARD: 5_637_144_576,  # 32 x 3 x 4,096 x 14,336
        Part.NORM: 266_240,  # 65 x 4,096
        Part.HEAD: 525_336_576,
    }


def test_a_dense_models_parameters_all_work_on_every_token() -> None:
    spec = describe_config(catalogue().model("llama-3.1-8b").config, name="8b")
    assert spec.active_parameters == spec.parameters


def test_llama_3_1_8b_keeps_128_kib_of_keys_and_values_a_token() -> None:
    spec = describe_config(catalogue().model("llama-3.1-8b").config, name="8b")
    # 32 layers x 2 x 8 heads x 128 features = 65,536 elements, 131,072 bytes in bf16.
    elements = sum(block.kv.elements_per_token * block.repeats for block in spec.layers if block.kv)
    assert elements == 65_536


def test_a_forward_pass_of_one_token_multiplies_by_every_matrix_once() -> None:
    spec = describe_config(catalogue().model("llama-3.1-8b").config, name="8b")
    # Two operations a weight of every matrix but the embedding, which is looked up, and norms, which are not
    # matrices: 2 x (8,030,261,248 - 525,336,576 - 266,240); one attended position adds 4 x 4,096 a layer.
    assert spec.forward_flops_per_token(0) == 15_009_316_864
    assert spec.forward_flops_per_token(1) - spec.forward_flops_per_token(0) == 32 * 4 * 4096


def test_every_tensor_has_a_name_of_its_own() -> None:
    spec = describe_config(catalogue().model("llama-3.1-8b").config, name="8b")
    names = [name for name, _ in spec.named_weights()]
    # 9 tensors a layer, the embedding, the last norm and the head.
    assert len(names) == len(set(names)) == 32 * 9 + 3
    assert "model.layers.31.self_attn.k_proj.weight" in names

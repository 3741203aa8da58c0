"""The planner's weights against transformers' modules."""

import pytest

from plimsoll.planners.ground.errors import InvalidModelConfig
from plimsoll.service.worker.proofs.task import run
from tests.planners.families.small_mixtures import MIXTURE_VARIANTS
from tests.service.worker.cases import LATENT, config, request

GPT2 = {"model_type": "gpt2", "vocab_size": 101, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}


@pytest.mark.parametrize(
    "model",
    [
        config(),
        config(tie_word_embeddings=True),
        config(attention_bias=True, mlp_bias=True),
        config(model_type="mistral"),
        config(model_type="qwen2"),
        config(model_type="qwen3"),
        GPT2,
    ],
    ids=["llama", "llama-tied", "llama-biases", "mistral", "qwen2", "qwen3", "gpt2"],
)
def test_every_weight_has_the_module_s_name_and_shape(model):
    result = run(request("count", model=model), lambda *_progress: None)
    assert (result["verdict"], result["differences"], result["relative_error"]) == ("confirmed", [], 0.0)


def test_llama_3_8b_has_8_030_261_248_parameters():
    # The published count; 291 tensors are 9 a layer, the embedding, the last norm and the head.
    llama = config(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    )  # fmt: skip
    result = run(request("count", model=llama), lambda *_progress: None)
    assert (result["measured"]["parameters"], result["tensors"]) == (8_030_261_248, 291)
    assert result["predicted"]["peak_bytes"] == result["measured"]["peak_bytes"] == 16_060_522_496


def test_a_config_that_transformers_cannot_build_is_refused():
    with pytest.raises(InvalidModelConfig, match="cannot build"):
        run(request("count", model=config(hidden_act="no such function")), lambda *_progress: None)


def test_what_loading_converts_is_no_difference_and_is_said():
    mixtral = {**MIXTURE_VARIANTS["mixtral"][0], "model_type": "mixtral"}
    result = run(request("count", model=mixtral), lambda *_progress: None)
    assert (result["verdict"], result["differences_total"]) == ("confirmed", 0)
    # 3 layers of 4 experts of 3 matrices, and 3 routers, whose block transformers calls `mlp`.
    assert any(note.startswith("39 of the checkpoint's tensors have other names") for note in result["notes"])


def test_the_buffers_of_a_checkpoint_are_on_both_sides():
    result = run(request("count", model=LATENT), lambda *_progress: None)
    assert (result["verdict"], result["relative_error"]) == ("confirmed", 0.0)
    # Two layers of 4 routed experts, each with a balancing bias.
    assert "Buffers that the checkpoint holds are counted: 8 elements." in result["notes"]

"""Models: configs as transformers writes them, and names as people give them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

LLAMA = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA4 = {
    "model_type": "gemma4_text", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size_per_layer_input": 0,
}  # fmt: skip


def _described(service: httpx.Client, model: Any) -> dict[str, Any]:
    # Written by hand: httpx writes no Infinity.
    answer = service.post(
        "/models/describe",
        content=json.dumps({"model": model}),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN"])
def test_numbers_that_transformers_wrote_are_read(service: httpx.Client, number: str) -> None:
    plain = _described(service, {"config": LLAMA})
    told = _described(service, {"config": {**LLAMA, "time_step_limit": [0.0, float(number)]}})
    assert told["parameters"] == plain["parameters"]


def test_a_window_of_zero_is_none(service: httpx.Client) -> None:
    qwen = {**LLAMA, "model_type": "qwen2"}
    assert (
        _described(service, {"config": {**qwen, "sliding_window": 0}})["parameters"]
        == _described(service, {"config": {**qwen, "sliding_window": None}})["parameters"]
    )


def test_every_quantized_matrix_may_be_listed(service: httpx.Client) -> None:
    names = [f"model.layers.{layer}.mlp.experts.{expert}.up_proj" for layer in range(60) for expert in range(256)]
    quantized = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": names}
    assert _described(service, {"config": {**LLAMA, "quantization_config": quantized}})["parameters"]


def test_gemma_4_without_a_vision_config_has_no_tower(service: httpx.Client) -> None:
    blind = _described(service, {"config": {"model_type": "gemma4", "text_config": GEMMA4, "vision_config": None}})
    assert blind["parameters"] == _described(service, {"config": GEMMA4})["parameters"]


def test_kimi_k2_7_code_is_sized_in_its_native_int4(service: httpx.Client) -> None:
    answer = service.post(
        "/plan/infer",
        json={
            "model": "moonshotai/Kimi-K2.7-Code",
            "hardware": {"gpu": "h200-sxm-141gb", "gpus": 8},
            "serving": {"concurrency": 8, "input_tokens": 1024, "output_tokens": 256},
        },
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["fits"]


@pytest.mark.parametrize("name", ["glm-4-9b-chat-hf", "mamba-2.8b-hf"])
def test_converted_models_are_known(service: httpx.Client, name: str) -> None:
    assert _described(service, name)["parameters"]


def test_the_nearest_name_is_of_the_same_family(service: httpx.Client) -> None:
    answer = service.post("/models/describe", json={"model": "mamba-1.4b-hf"})
    assert answer.status_code == 422
    assert answer.text.index("mamba-2.8b-hf") > 0
    assert "Llama-2-7b-hf" not in answer.text


def test_stablelms_norms_of_queries_and_keys_are_counted(service: httpx.Client) -> None:
    plain, normed = (
        _described(service, {"config": {**LLAMA, "model_type": "stablelm", "qk_layernorm": has}})["parameters"]["total"]
        for has in (False, True)
    )
    # 32 layers x (32 + 8) heads x 128 features.
    assert normed - plain == 163_840


@pytest.mark.parametrize("stored", [
    {"quant_method": "AWQ", "bits": 4},
    {"quant_method": "compressed_tensors", "config_groups": {"all": {"weights": {"num_bits": 4, "type": "int"}}}},
])  # fmt: skip
def test_a_quant_method_is_read_as_vllm_reads_it(service: httpx.Client, stored: dict[str, Any]) -> None:
    assert _described(service, {"config": {**LLAMA, "quantization_config": stored}})["stored"]["weights"] == "int4"


def test_a_classifiers_missing_vocabulary_head_is_told(service: httpx.Client) -> None:
    told = _described(service, {"config": {**LLAMA, "architectures": ["LlamaForSequenceClassification"]}})
    assert any("LlamaForSequenceClassification" in note for note in told["assumptions"])

"""A quantized re-upload is its model, in the formats its checkpoint holds."""

from __future__ import annotations

import re

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families.reading.stored_formats import StoredFormats
from plimsoll.planners.serving.cache.kv_formats import KV_FORMATS
from plimsoll.planners.serving.formats.weight_format import WEIGHT_FORMATS

# What re-uploads call their formats.
FORMAT_WORDS = re.compile(r"fp8|nvfp4|w4a16|w8a8", re.IGNORECASE)
WORDS = {"fp8": "fp8", "nvfp4": "nvfp4", "w4a16": "int4", "w8a8": "int8"}


@pytest.mark.parametrize(
    ("name", "model", "stored"),
    [
        (
            "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic",
            "meta-llama/Llama-3.3-70B-Instruct",
            StoredFormats(weights="fp8"),
        ),
        (
            "redhatai/meta-llama-3.1-8b-instruct-quantized.w4a16",
            "meta-llama/Llama-3.1-8B-Instruct",
            StoredFormats(weights="int4"),
        ),
        (
            "nvidia/Llama-3.1-70B-Instruct-FP8",
            "meta-llama/Llama-3.1-70B-Instruct",
            StoredFormats(weights="fp8", kv_cache="fp8"),
        ),
        ("nvidia/Kimi-K2.5-NVFP4", "moonshotai/Kimi-K2.5", StoredFormats(weights="nvfp4", kv_cache="fp8")),
    ],
)
def test_a_reupload_carries_its_formats(name: str, model: str, stored: StoredFormats) -> None:
    found = catalogue().model(name)
    assert (found.id, found.stored) == (model, stored)
    assert found.stored_weights == stored.weights


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b"])
def test_a_models_own_names_say_nothing_of_formats(name: str) -> None:
    found = catalogue().model(name)
    assert (found.stored, found.stored_weights) == (None, None)


def test_a_reupload_is_its_model_in_all_else() -> None:
    base, other = (catalogue().model(name) for name in ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B-FP8"))
    assert (other.config, other.aliases, other.source) == (base.config, base.aliases, base.source)


def test_every_alias_that_names_a_format_carries_that_format() -> None:
    for model in catalogue().models:
        for alias in model.aliases:
            word = FORMAT_WORDS.search(alias.split("/")[-1])
            if word:
                assert model.formats[alias].weights == WORDS[word.group().lower()], alias


def test_every_carried_format_is_one_that_can_be_served() -> None:
    carried = [formats for model in catalogue().models for formats in model.formats.values()]
    assert len(carried) >= 40
    assert {formats.weights for formats in carried} <= set(WEIGHT_FORMATS)
    assert {formats.kv_cache for formats in carried if formats.kv_cache} <= set(KV_FORMATS)


# Read from the config of a quantized form, while their own checkpoints hold 16 bits; each has its forms as aliases or
# is a base model of which only the tuned one was quantized.
HELD_IN_16_BITS = {
    "CohereForAI/c4ai-command-r-v01",
    "MiniMaxAI/MiniMax-M3",
    "Qwen/Qwen3.6-27B",
    "Qwen/Qwen3.6-35B-A3B",
    "THUDM/glm-4-9b-chat-hf",
    "google/gemma-4-31B",
    "google/gemma-4-31B-it",
    "mistralai/Ministral-3-8B-Instruct-2512-BF16",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
}
QUANTIZED_NAMES = re.compile(r"nvfp4|mxfp4|fp8|awq|gptq|int4|int8|4bit|8bit", re.IGNORECASE)


def test_a_model_read_from_a_quantized_config_says_what_its_own_checkpoint_holds():
    silent = {model.id for model in catalogue().models if QUANTIZED_NAMES.search(model.source) and model.stored is None}
    assert silent == HELD_IN_16_BITS


def test_kimi_k2_7_code_is_held_as_kimi_k2_6_is():
    code, general = (catalogue().model(f"moonshotai/Kimi-K2.{name}").stored for name in ("7-Code", "6"))
    assert code == general
    assert code is not None
    assert code.weights == "int4-experts"

"""A quantized re-upload is its model, in the formats its checkpoint holds."""

from __future__ import annotations

import re

import pytest

from planners.catalogue import catalogue
from planners.huggingface.stored_formats import StoredFormats
from planners.serving.kv_formats import KV_FORMATS
from planners.serving.weight_format import WEIGHT_FORMATS

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
    assert (found.stored_weights, found.stored_kv_cache) == (stored.weights, stored.kv_cache)


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b"])
def test_a_models_own_names_say_nothing_of_formats(name: str) -> None:
    found = catalogue().model(name)
    assert (found.stored, found.stored_weights, found.stored_kv_cache) == (None, None, None)


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

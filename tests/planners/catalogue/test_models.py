"""Every model file is whole, sourced and agrees with its published size."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import CatalogueModel, catalogue
from plimsoll.planners.catalogue.catalogue import FOLDER
from plimsoll.planners.families import describe_config

FILES = sorted((FOLDER / "models").glob("*.json"))
KEYS = {"id", "aliases", "published_parameters", "source", "verified", "config"}
# Fewer would mean that files were lost: the first version had 184.
FEWEST_MODELS = 150

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
every_model = pytest.mark.parametrize("model", catalogue().models, ids=lambda model: model.id)


def test_the_published_models_are_many() -> None:
    assert len(catalogue().models) >= FEWEST_MODELS


@every_file
def test_a_file_has_the_agreed_fields_and_is_named_by_its_id(path: Path) -> None:
    record = json.loads(path.read_bytes())
    assert set(record) == KEYS
    assert path.stem == record["id"].replace("/", "--")
    assert record["source"]
    assert record["verified"] in {"file", "count", "file+count", "paper"}


@every_file
def test_only_what_a_paper_alone_describes_is_under_paper(path: Path) -> None:
    record = json.loads(path.read_bytes())
    if record["verified"] == "paper":
        assert record["id"].startswith("paper/")
        assert "arXiv:" in record["source"]
    assert not record["id"].startswith("paper/") or record["published_parameters"] is None


@every_model
def test_a_model_can_be_described_and_every_key_of_its_config_is_known(model: CatalogueModel) -> None:
    spec = described(model)
    # Dual chunk attention is an option of engines for very long contexts; it changes no weight.
    unread = [
        note for note in spec.assumptions if "were not used" in note and "dual_chunk_attention_config" not in note
    ]
    assert unread == []


@every_model
def test_the_described_count_is_the_published_one(model: CatalogueModel) -> None:
    if model.published_parameters is None:
        assert "count" not in model.verified
        return
    assert "count" in model.verified
    spec = described(model)
    # Some checkpoints store a tied head as well: their files hold vocabulary x hidden elements more.
    stored_head = spec.vocabulary_size * spec.hidden_size if spec.tied_head else 0
    assert model.published_parameters in {spec.parameters, spec.parameters + stored_head}


def test_only_two_checkpoints_store_their_tied_head_as_well() -> None:
    twice = {
        model.id
        for model in catalogue().models
        if model.published_parameters and model.published_parameters > described(model).parameters
    }
    assert twice == {"Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B"}


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("meta-llama/Llama-3.2-1B", True),
        ("meta-llama/Llama-3.2-3B", True),
        ("meta-llama/Llama-3.1-8B", False),
        ("Qwen/Qwen2.5-3B", True),
        ("Qwen/Qwen2.5-7B", False),
        ("Qwen/Qwen3-4B", True),
        ("Qwen/Qwen3-8B", False),
        # Distilled from Qwen2.5-Math-1.5B, which is tied; the checkpoint has a head of its own.
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", False),
        ("openai-community/gpt2", True),
    ],
)
def test_small_models_tie_their_head_and_large_ones_do_not(name: str, tied: bool) -> None:
    assert described(catalogue().model(name)).tied_head is tied


@pytest.mark.parametrize(
    ("name", "vocabulary_size"),
    [
        ("llama-2-7b", 32_000),
        ("llama-3.1-8b", 128_256),
        ("codellama/CodeLlama-7b-hf", 32_016),
        ("codellama/CodeLlama-34b-hf", 32_000),
        ("qwen2.5-0.5b", 151_936),
        ("qwen2.5-72b", 152_064),
        ("mistral-7b", 32_000),
        ("mistralai/Mistral-7B-v0.3", 32_768),
        ("gpt2", 50_257),
    ],
)
def test_the_vocabulary_is_the_checkpoints_own(name: str, vocabulary_size: int) -> None:
    assert described(catalogue().model(name)).vocabulary_size == vocabulary_size


def test_the_first_mistral_slides_and_the_later_ones_do_not() -> None:
    windows = {
        name: {block.kv.window for block in described(catalogue().model(name)).layers if block.kv}
        for name in ("mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-v0.3")
    }
    assert windows == {"mistralai/Mistral-7B-v0.1": {4096}, "mistralai/Mistral-7B-v0.3": {None}}


def described(model: CatalogueModel) -> ModelSpec:
    return described_once(model.id)


@functools.cache
def described_once(name: str) -> ModelSpec:
    return describe_config(catalogue().model(name).config, name=name)

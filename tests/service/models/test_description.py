"""Descriptions add up for every family, and say what layers remember and what a token costs."""

from __future__ import annotations

from functools import cache

import pytest

from plimsoll.planners.catalogue import CatalogueModel, catalogue
from plimsoll.service.catalogue.pages import CataloguePages
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.description import ModelDescription
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.text.models import model_text


@cache
def pages() -> CataloguePages:
    return CataloguePages(catalogue(), ModelResolver(catalogue(), Settings()))


def described(name: str, sequence_length: int | None = None) -> ModelDescription:
    return pages().model(name, sequence_length=sequence_length)


def one_of_each_family() -> list[CatalogueModel]:
    return list({model.config["model_type"]: model for model in catalogue().models}.values())


every_family = pytest.mark.parametrize("model", one_of_each_family(), ids=lambda model: model.config["model_type"])


@every_family
def test_parts_and_blocks_add_up(model: CatalogueModel):
    found = described(model.id)
    total, active = found.parameters.total, found.parameters.active
    assert sum(found.parameters.by_part.values()) == total
    assert sum(block.parameters_each * block.repeats for block in found.blocks) == total
    assert sum(block.active_parameters_each * block.repeats for block in found.blocks) == active
    assert 0 < active <= total


@every_family
def test_operations_of_the_blocks_add_up_and_grow_with_the_sequence(model: CatalogueModel):
    found = described(model.id, 1_024)
    by_block = sum(block.forward_flops_per_token_each * block.repeats for block in found.blocks)
    assert by_block == pytest.approx(found.flops.forward_flops_per_token)
    longer = described(model.id, 2_048).flops
    assert longer.training_flops_per_token >= found.flops.training_flops_per_token > 0


@every_family
def test_the_cache_adds_up(model: CatalogueModel):
    cache = described(model.id).kv
    assert cache.bytes_per_token <= cache.bytes_per_token_within_windows
    assert all(group.bytes_per_token_per_layer or group.state_bytes_per_layer for group in cache.groups)
    assert sum(group.layers for group in cache.groups) <= described(model.id).layers


@every_family
def test_a_terminal_of_a_hundred_columns_shows_it(model: CatalogueModel):
    text = model_text(described(model.id))
    assert f"{described(model.id).parameters.total:,}" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_mixture_works_with_a_few_of_its_experts():
    # Jiang et al. 2024, arXiv:2401.04088: 46.7B parameters, 12.9B of them for a token.
    mixtral = described("mixtral-8x7b").parameters
    assert (round(mixtral.total / 1e9, 1), round(mixtral.active / 1e9, 1)) == (46.7, 12.9)


def test_a_latent_layer_keeps_one_latent_for_all_heads():
    (dense, expert) = described("deepseek-ai/DeepSeek-V3").kv.groups
    # DeepSeek-V3: 512 latent and 64 rotary elements, two bytes each (arXiv:2412.19437, section 4.2).
    assert dense.latent_width == expert.latent_width == 576
    assert dense.bytes_per_token_per_layer == 1_152
    assert described("deepseek-ai/DeepSeek-V3").kv.bytes_per_token == 61 * 1_152


def test_a_recurrent_layer_keeps_a_state_and_nothing_for_a_token():
    jamba = described("jamba").kv
    # 8192 inner features: 4 inputs of a convolution in bf16 or 3, and 16 states each in fp32;
    # 4 of 32 layers attend, with 8 heads of 128 (arXiv:2403.19887).
    assert jamba.bytes_per_token == 4 * 2 * 8 * 128 * 2
    states = [group for group in jamba.groups if group.state_bytes_per_layer]
    assert sum(group.layers for group in states) == 28
    assert {group.state_bytes_per_layer - 8_192 * 16 * 4 for group in states} == {8_192 * 3 * 2}


def test_within_its_window_a_layer_grows_like_any_other():
    gemma = described("gemma-3-12b-it").kv
    # 2 x 8 heads x 256 x 2 bytes in 48 layers, 8 of them without a window.
    assert gemma.bytes_per_token_within_windows == 48 * 8_192
    assert gemma.bytes_per_token == 8 * 8_192


def test_an_encoder_keeps_no_cache_and_is_counted_at_a_length_it_takes():
    bert = described("bert-base-cased")
    assert bert.kv.groups == ()
    assert bert.flops.sequence_length == 512
    assert "None is kept" in model_text(bert)


@pytest.mark.parametrize(("name", "length"), [("gpt2", 1_024), ("llama-3.1-8b", 4_096)])
def test_where_no_length_is_asked_for_it_is_one_the_model_takes(name: str, length: int):
    assert described(name).flops.sequence_length == length
    assert described(name, 77).flops.sequence_length == 77

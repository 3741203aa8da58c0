"""gpt-oss against its model card, arXiv:2508.10925, table 1."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.architecture import ModelSpec, Part
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig
from tests.planners.families.small_mixtures import GPT_OSS


def small(**fields: Any) -> ModelSpec:
    return describe_config({"model_type": "gpt_oss", **GPT_OSS, **fields}, name="small")


@pytest.mark.parametrize(
    ("name", "experts", "attention", "both_embeddings", "active", "total"),
    [("openai/gpt-oss-120b", 114.71, 0.96, 1.16, 5.13, 116.83), ("openai/gpt-oss-20b", 19.12, 0.64, 1.16, 3.61, 20.91)],
)
def test_the_parts_are_those_of_the_model_card(
    name: str, experts: float, attention: float, both_embeddings: float, active: float, total: float
) -> None:
    spec = describe_config(catalogue().model(name).config, name=name)
    parts = {part: count / 1e9 for part, count in spec.parameters_by_part().items()}
    # The card prints two decimals; routers are part of its "MLP".
    assert parts[Part.EXPERT] + parts[Part.ROUTER] == pytest.approx(experts, abs=0.005)
    assert parts[Part.ATTENTION] == pytest.approx(attention, abs=0.005)
    assert parts[Part.EMBEDDING] + parts[Part.HEAD] == pytest.approx(both_embeddings, abs=0.005)
    assert spec.parameters / 1e9 == pytest.approx(total, abs=0.005)
    # The card counts the head as active and the embedding not.
    assert spec.active_parameters / 1e9 - parts[Part.EMBEDDING] == pytest.approx(active, abs=0.005)


def test_every_other_layer_slides_the_first_one_first() -> None:
    windows = {
        layer: block.kv.window for block in small(sliding_window=32).layers if block.kv for layer in block.layers
    }
    assert [windows[layer] for layer in range(3)] == [32, None, 32]


def test_without_a_window_given_it_is_the_config_classs_128() -> None:
    assert {block.kv.window for block in small().layers if block.kv} == {128, None}


def test_packed_experts_are_told_of() -> None:
    packed = small(quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    assert any("MXFP4" in note for note in packed.assumptions)
    assert packed.parameters == small().parameters
    assert small().assumptions == ()


def test_more_experts_a_token_than_there_are_is_refused() -> None:
    with pytest.raises(InvalidModelConfig, match="has 4 experts"):
        small(num_experts_per_tok=5)

"""MiniMax M3: blocks of earlier tokens are chosen, after a few layers that read them all."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig
from tests.planners.families.small_recent import MINIMAX_M3_TEXT


def described(**fields: Any) -> ModelSpec:
    return describe_config({"model_type": "minimax_m3", **MINIMAX_M3_TEXT, **fields}, name="small")


def m3() -> ModelSpec:
    return describe_config(catalogue().model("minimax-m3").config, name="m3")


def test_the_first_three_layers_are_dense_and_read_everything() -> None:
    first = m3().layers[0]
    assert first.layers == (0, 1, 2)
    assert first.kind == "dense_layer"
    assert [block.kv.index_width for block in (first,) if block.kv] == [0]


@pytest.mark.parametrize(("context", "read"), [(1024, 1024), (1024.5, 1024.5), (100_000, 2048 - 2048 * 2047 / 399_998)])
def test_the_others_read_sixteen_blocks_of_128_tokens_at_most(context: float, read: float) -> None:
    operations = {operation.name: operation for operation in m3().layers[1].operations}
    # 64 heads of 128: 2 x 64 x (128 + 128) = 32,768 operations a token read; 4 indexing heads read every token.
    # 100,000 on average are a sequence of 199,999, whose first 2,048 tokens see 1 to 2,048.
    assert operations["attention"].forward_flops_per_token(context) == pytest.approx(32_768 * read)
    assert operations["index_scores"].forward_flops_per_token(context) == 2 * 4 * 128 * context


def test_a_sparse_layer_caches_the_indexers_key_beside_keys_and_values() -> None:
    # 4 heads x (128 + 128) and one key of 128.
    states = {block.kv.elements_per_token for block in m3().layers if block.kv}
    assert states == {1024, 1024 + 128}


def test_the_chosen_blocks_do_not_bound_the_cache() -> None:
    assert {block.kv.window for block in m3().layers if block.kv} == {None}


def test_without_lists_every_layer_has_experts_and_reads_everything() -> None:
    spec = described(moe_layer_freq=None, sparse_attention_config=None)
    assert {block.kind for block in spec.layers} == {"expert_layer"}
    assert not any("index" in name for name, _ in spec.named_weights())


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"attention_output_gate": True}, "attention_output_gate"),
        ({"moe_layer_freq": [0, 1]}, "moe_layer_freq"),
        ({"moe_layer_freq": [0, 1, 2, 1]}, "moe_layer_freq"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"sparse_attention_config": {"use_sparse_attention": False}}, "sparse_attention_config/use_sparse_attention"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok"),
        ({"use_qk_norm": False}, "use_qk_norm"),
    ],
)
def test_what_is_not_described_is_refused_by_name(fields: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        described(**fields)
    assert caught.value.pointer == f"/model/config/{pointer}"

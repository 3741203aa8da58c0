"""DBRX: matrices that hold several projections are split projection by projection."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig
from tests.planners.families.small_mixtures import DBRX


def small(**fields: Any) -> ModelSpec:
    return describe_config({"model_type": "dbrx", **DBRX, **fields}, name="small")


def test_dbrx_has_132_billion_parameters_of_which_36_work_on_a_token() -> None:
    spec = describe_config(catalogue().model("databricks/dbrx-base").config, name="dbrx")
    # Embedding and head 2 x 100,352 x 6,144 = 1,233,125,376; a layer: Wqkv 8,192 x 6,144, output 6,144^2, norms
    # 12,288, router 98,304 = 88,190,976, an expert 3 x 10,752 x 6,144 = 198,180,864; 40 layers with 16 experts
    # 130,363,392,000, with 4 35,236,577,280; last norm 6,144.
    assert spec.parameters == 131_596_523_520
    assert spec.active_parameters == 36_469_708_800


def test_queries_and_keys_are_each_divided_by_their_own_heads() -> None:
    weights = dict(small().named_weights())
    fused = weights["transformer.blocks.0.norm_attn_norm.attn.Wqkv.weight"]
    # 8 query and 2 + 2 key and value heads of 8: over 4 ranks 16 rows of queries and a whole head of each other.
    assert fused.shape == (96, 64)
    assert [fused.local_shape(ranks) for ranks in (2, 4)] == [(48, 64), (16 + 8 + 8, 64)]


def test_an_experts_rows_are_divided_expert_by_expert() -> None:
    weights = dict(small().named_weights())
    first = weights["transformer.blocks.0.ffn.experts.mlp.w1"]
    # 4 experts of 20 rows: over 8 ranks each gives 3 at most.
    assert (first.shape, first.tensors) == ((80, 64), 1)
    assert first.local_shape(8) == (4 * 3, 64)


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"n_heads": 7}, "/model/config/n_heads"),
        ({"attn_config": {"kv_n_heads": 3}}, "/model/config/attn_config/kv_n_heads"),
        ({"attn_config": 3}, "/model/config/attn_config"),
        ({"ffn_config": {"moe_num_experts": 2, "moe_top_k": 3}}, "/model/config/ffn_config/moe_top_k"),
        ({"tie_word_embeddings": True}, "/model/config/tie_word_embeddings"),
    ],
)
def test_a_contradiction_is_named(fields: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        small(**fields)
    assert caught.value.pointer == pointer

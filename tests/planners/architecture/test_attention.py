"""Grouped attention: heads of unlike widths, and what is cached of them."""

from __future__ import annotations

from plimsoll.planners.architecture import KvKind, Split
from plimsoll.planners.architecture.attention import (
    GroupedAttention,
    attention_operations,
    attention_tensors,
    separate_projections,
    sink_weight,
)

# MiMo's arrangement: keys of 12 features and values of 10, 8 heads over 2 key-value heads.
NARROW_VALUES = GroupedAttention(hidden_size=64, heads=8, key_value_heads=2, head_dim=12, value_head_dim=10)
CHUNKED = GroupedAttention(hidden_size=64, heads=8, key_value_heads=2, head_dim=8, window=32, is_chunked=True)


def test_narrow_values_shape_the_value_and_output_projections_alone() -> None:
    weights = separate_projections("a", NARROW_VALUES, qkv_bias=True, output_bias=False)
    assert {weight.name: weight.shape for weight in weights} == {
        "a.q_proj.weight": (96, 64),
        "a.q_proj.bias": (96,),
        "a.k_proj.weight": (24, 64),
        "a.k_proj.bias": (24,),
        "a.v_proj.weight": (20, 64),
        "a.v_proj.bias": (20,),
        "a.o_proj.weight": (64, 80),
    }


def test_narrow_values_narrow_what_is_kept_and_computed() -> None:
    widths = {tensor.name: tensor.width for tensor in attention_tensors(NARROW_VALUES)}
    assert (widths["key"], widths["value"], widths["attention_context"]) == (24, 20, 80)
    shapes = {operation.name: operation.matmul_shape for operation in attention_operations(NARROW_VALUES)}
    assert shapes["value_projection"] == (64, 20)
    assert shapes["output_projection"] == (80, 64)


def test_the_cache_of_narrow_values_holds_keys_and_values_as_wide_as_they_are() -> None:
    # 2 heads x (12 + 10) elements a token.
    assert NARROW_VALUES.kv_state().elements_per_token == 44


def test_a_chunk_is_another_kind_of_cache_than_a_window() -> None:
    assert CHUNKED.kv_state().kind is KvKind.CHUNKED_LOCAL
    assert CHUNKED.kv_state().window == 32
    assert CHUNKED.with_window(None).kv_state().kind is KvKind.FULL_ATTENTION


def test_a_chunked_layer_attends_within_its_chunk() -> None:
    core = next(op for op in attention_operations(CHUNKED) if op.name == "attention")
    assert (core.window, core.is_chunked) == (32, True)


def test_sinks_are_divided_with_their_heads() -> None:
    sinks = sink_weight("a.sinks", CHUNKED)
    assert sinks.split is Split.COLUMN
    assert [sinks.local_shape(ranks) for ranks in (1, 2, 8)] == [(8,), (4,), (1,)]

"""Attention whose query matrix also puts out a gate for what each head gathers."""

from __future__ import annotations

import dataclasses

from plimsoll.planners.architecture.attention import (
    GroupedAttention,
    attention_operations,
    attention_tensors,
    separate_projections,
)

PLAIN = GroupedAttention(hidden_size=64, heads=8, key_value_heads=2, head_dim=12)
GATED = dataclasses.replace(PLAIN, has_output_gate=True)


def test_the_query_matrix_is_twice_as_wide_and_the_others_stay() -> None:
    shapes = {
        weight.name: weight.shape for weight in separate_projections("x", GATED, qkv_bias=True, output_bias=False)
    }
    assert shapes["x.q_proj.weight"] == (192, 64)  # 2 x 8 x 12
    assert shapes["x.q_proj.bias"] == (192,)
    assert shapes["x.k_proj.weight"] == (24, 64)
    assert shapes["x.o_proj.weight"] == (64, 96)


def test_the_gate_costs_its_features_of_the_query_matrix() -> None:
    def flops(size: GroupedAttention) -> float:
        return sum(operation.forward_flops_per_token(10.0) for operation in attention_operations(size))

    assert flops(GATED) - flops(PLAIN) == 2 * 64 * 96


def test_gate_and_gated_context_are_kept_beside_the_others() -> None:
    widths = {tensor.name: tensor.width for tensor in attention_tensors(GATED)}
    assert widths["query"] == widths["attention_gate"] == widths["gated_context"] == 96
    assert {tensor.name for tensor in attention_tensors(GATED)} - {t.name for t in attention_tensors(PLAIN)} == {
        "attention_gate",
        "gated_context",
    }


def test_the_cache_does_not_hold_the_gate() -> None:
    assert GATED.kv_state() == PLAIN.kv_state()

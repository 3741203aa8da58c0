"""A gate on what attention puts out."""

from __future__ import annotations

from plimsoll.planners.architecture.attention import GroupedAttention
from plimsoll.planners.architecture.decoder import attention_half
from plimsoll.planners.architecture.output_gate import gated_output

SIZE = GroupedAttention(hidden_size=64, heads=8, key_value_heads=2, head_dim=12)


def test_the_gate_costs_one_matrix_and_stands_before_the_output_projection() -> None:
    plain = attention_half(SIZE)
    gated = gated_output(plain, hidden_size=64, gate_width=8, context_width=96)
    names = [operation.name for operation in gated.operations]
    assert names[-3:] == ["gate_projection", "attention_gating", "output_projection"]
    # 2 x 64 x 8 operations more.
    flops = [sum(operation.forward_flops_per_token(7) for operation in half.operations) for half in (plain, gated)]
    assert flops[1] - flops[0] == 2 * 64 * 8


def test_every_tensor_that_is_read_is_there() -> None:
    gated = gated_output(attention_half(SIZE), hidden_size=64, gate_width=8, context_width=96)
    names = {tensor.name for tensor in gated.tensors}
    assert {name for operation in gated.operations for name in operation.inputs} <= names

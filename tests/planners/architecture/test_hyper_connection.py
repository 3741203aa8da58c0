"""Several residual streams around each half of a layer."""

from __future__ import annotations

from plimsoll.planners.architecture import Block
from plimsoll.planners.architecture.attention import GroupedAttention
from plimsoll.planners.architecture.decoder import attention_half, decoder_layer, feed_forward_half
from plimsoll.planners.architecture.hyper_connection import (
    HyperConnection,
    hyper_connected_layer,
    hyper_connection_weights,
)

SIZE = HyperConnection(hidden_size=64, streams=4)
ATTENTION = GroupedAttention(hidden_size=64, heads=8, key_value_heads=2, head_dim=8)


def layer() -> Block:
    return hyper_connected_layer(
        SIZE,
        layers=(0,),
        mixer=attention_half(ATTENTION),
        feed_forward=feed_forward_half(64, 96, gated=True),
        weights=(),
        kv=ATTENTION.kv_state(),
        kind="decoder_layer",
    )


def flops(block: Block) -> float:
    return sum(operation.forward_flops_per_token(10) for operation in block.operations)


def test_a_half_has_a_coefficient_for_each_stream_in_and_out_and_between_any_two() -> None:
    # 4 in, 4 out, 16 between.
    shapes = {weight.name: weight.shape for weight in hyper_connection_weights("hc", SIZE)}
    assert shapes == {"hc_fn": (24, 256), "hc_base": (24,), "hc_scale": (3,)}


def test_the_streams_cost_their_coefficients_and_their_mixing() -> None:
    plain = decoder_layer(
        layers=(0,),
        hidden_size=64,
        mixer=attention_half(ATTENTION),
        feed_forward=feed_forward_half(64, 96, gated=True),
        weights=(),
        kv=None,
    )
    # A half: coefficients 2 x 256 x 24, collapse 2 x 256, mixing 2 x 5 x 256.
    assert flops(layer()) - flops(plain) == 2 * (2 * 256 * 24 + 2 * 256 + 2 * 5 * 256)


def test_the_layers_input_and_output_are_all_streams() -> None:
    widths = {tensor.name: tensor.width for tensor in layer().tensors}
    assert widths["residual"] == widths["middle_residual"] == 256
    assert widths["attention_collapsed"] == widths["attention_input"] == 64

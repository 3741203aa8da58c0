"""T5: an encoder that sees its whole input, a decoder that attends to itself and to the encoder's output."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture.attention import GroupedAttention, column, output_projection
from plimsoll.planners.architecture.cross_attention import cross_attention_half, with_encoder_output
from plimsoll.planners.architecture.decoder import Half, attention_half, decoder_layer, feed_forward_half, norm_weights
from plimsoll.planners.architecture.feed_forward import feed_forward_column, feed_forward_row
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Part, Split, Weight
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.assembly import DecoderNames, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.own_code import OwnCode

# Defaults of transformers' T5Config.
DEFAULT_BUCKETS = 32
DEFAULT_HEAD_DIM = 64
EQUAL_LENGTHS_NOTE = (
    "The sequence length is taken for the encoder's input and for the decoder's alike; every layer of both is counted "
    "as a layer."
)


RELATIVE_BIAS_NOTE = (
    "Attention adds a learned bias by distance, which flash attention has no place for: ask for attention 'eager' to "
    "plan what `transformers` runs."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stack:
    """The sizes that encoder and decoder share."""

    attention: GroupedAttention
    intermediate_size: int
    is_gated: bool
    buckets: int

    def encoder(self, indices: tuple[int, ...]) -> Block:
        """Return the encoder's layers at `indices`; the first has the table of relative positions."""
        size = dataclasses.replace(self.attention, is_bidirectional=True)
        prefix = "encoder.block.{layer}.layer"
        return decoder_layer(
            layers=indices,
            hidden_size=size.hidden_size,
            mixer=attention_half(size),
            feed_forward=self._feed_forward_half(),
            kv=None,
            kind="encoder_layer",
            weights=(
                *self._attention(f"{prefix}.0.SelfAttention"),
                *(self._positions(f"{prefix}.0.SelfAttention") if indices[0] == 0 else ()),
                *norm_weights(f"{prefix}.0.layer_norm", size.hidden_size),
                *self._feed_forward(f"{prefix}.1"),
            ),
        )

    def decoder(self, indices: tuple[int, ...], first: int) -> Block:
        """Return the decoder's layers at `indices`, whose first of all is `first`.

        That one has the table of relative positions, and norms and keeps the
        encoder's output for all.
        """
        size, prefix = self.attention, "decoder.block.{layer}.layer"
        is_first = indices[0] == first
        block = decoder_layer(
            layers=indices,
            hidden_size=size.hidden_size,
            mixer=attention_half(size),
            cross=cross_attention_half(size),
            feed_forward=self._feed_forward_half(),
            kv=size.kv_state(),
            weights=(
                *self._attention(f"{prefix}.0.SelfAttention"),
                *(self._positions(f"{prefix}.0.SelfAttention") if is_first else ()),
                *norm_weights(f"{prefix}.0.layer_norm", size.hidden_size),
                *self._attention(f"{prefix}.1.EncDecAttention"),
                *norm_weights(f"{prefix}.1.layer_norm", size.hidden_size),
                *self._feed_forward(f"{prefix}.2"),
                *(norm_weights("encoder.final_layer_norm", size.hidden_size) if is_first else ()),
            ),
        )
        block = dataclasses.replace(block, first_named=first, cross=size.cross_state())
        return with_encoder_output(block, size.hidden_size) if is_first else block

    def _attention(self, prefix: str) -> tuple[Weight, ...]:
        size = self.attention
        shape = (size.query_width, size.hidden_size)
        return (
            *(column(f"{prefix}.{name}.weight", shape, size.heads, is_linear=True) for name in ("q", "k", "v")),
            output_projection(f"{prefix}.o.weight", size),
        )

    def _positions(self, prefix: str) -> tuple[Weight, ...]:
        """Return the table of biases by distance, a column for each head."""
        heads = self.attention.heads
        return (
            Weight(
                name=f"{prefix}.relative_attention_bias.weight",
                shape=(self.buckets, heads),
                part=Part.ATTENTION,
                split=Split.COLUMN,
                dim=1,
                units=heads,
            ),
        )

    def _feed_forward(self, prefix: str) -> tuple[Weight, ...]:
        hidden, inner = self.attention.hidden_size, self.intermediate_size
        dense = f"{prefix}.DenseReluDense"
        names = ("wi_0", "wi_1") if self.is_gated else ("wi",)
        return (
            *(feed_forward_column(f"{dense}.{name}.weight", (inner, hidden), dim=0, is_linear=True) for name in names),
            feed_forward_row(f"{dense}.wo.weight", (hidden, inner), dim=1),
            *norm_weights(f"{prefix}.layer_norm", hidden),
        )

    def _feed_forward_half(self) -> Half:
        return feed_forward_half(self.attention.hidden_size, self.intermediate_size, gated=self.is_gated)


def t5(config: ConfigReader) -> ModelSpec:
    """Return a T5 model as it is trained.

    Source: `transformers` 5.23, modeling_t5; Raffel et al. 2019, arXiv:1910.10683.
    """
    stack = _stack(config)
    encoders = config.size("num_layers", most=MOST_LAYERS)
    decoders = config.size("num_decoder_layers", default=encoders, most=MOST_LAYERS)
    config.ignore(
        "classifier_dropout", "decoder_start_token_id", "dense_act_fn", "dropout_rate", "initializer_factor",
        "is_encoder_decoder", "is_gated_act", "n_positions", "output_past", "relative_attention_max_distance",
        "tokenizer_class",
    )  # fmt: skip
    decoder_indices = tuple(range(encoders, encoders + decoders))
    layers = (
        stack.encoder((0,)),
        *((stack.encoder(tuple(range(1, encoders))),) if encoders > 1 else ()),
        stack.decoder(decoder_indices[:1], encoders),
        *((stack.decoder(decoder_indices[1:], encoders),) if decoders > 1 else ()),
    )
    return decoder_model(
        config,
        attention=stack.attention,
        layers=layers,
        tied=config.flag("tie_word_embeddings", default=True),
        names=DecoderNames(embedding="shared.weight", final_norm="decoder.final_layer_norm"),
        assumptions=(EQUAL_LENGTHS_NOTE, RELATIVE_BIAS_NOTE),
    )


def _stack(config: ConfigReader) -> _Stack:
    heads = config.size("num_heads")
    activation = config.text("feed_forward_proj", default="relu")
    return _Stack(
        attention=GroupedAttention(
            hidden_size=config.size("d_model"),
            heads=heads,
            key_value_heads=heads,
            head_dim=config.size("d_kv", default=DEFAULT_HEAD_DIM),
            has_rotary=False,
        ),
        intermediate_size=config.size("d_ff"),
        is_gated=activation.startswith("gated-"),
        buckets=config.size("relative_attention_num_buckets", default=DEFAULT_BUCKETS),
    )


FAMILIES: Mapping[str, Family] = {
    # The dropout between the matrices of a feed-forward is not described: a mask, and a copy of what is left.
    "t5": Family(
        reader=t5,
        own_code=OwnCode(
            dropout_key="dropout_rate",
            dropout=0.1,
            score_dropout_key="dropout_rate",
            score_dropout=0.1,
            softmax_in_fp32=False,
        ),
    ),
}

"""BART and Whisper: an encoder of text or of sound, and a decoder that attends to itself and to what it made.

Sources: `transformers` 5.23, modeling_bart and modeling_whisper; Lewis et al. 2019,
arXiv:1910.13461; Radford et al. 2022, arXiv:2212.04356.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture.attention import GroupedAttention, column, output_projection
from plimsoll.planners.architecture.cross_attention import cross_attention_half, with_encoder_output
from plimsoll.planners.architecture.decoder import (
    NormPlacement,
    attention_half,
    decoder_layer,
    feed_forward_half,
    norm_weights,
)
from plimsoll.planners.architecture.feed_forward import plain_weights
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.assembly import DecoderNames, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader

# Defaults of transformers' BartConfig and WhisperConfig.
BART_POSITIONS, BART_POSITION_OFFSET = 1024, 2
SOUND_STATES, TEXT_POSITIONS, MEL_BINS = 1500, 448, 80
# The two convolutions before Whisper's encoder look at three frames each.
FRAMES_PER_FILTER = 3
IGNORED = (
    "activation_dropout", "activation_function", "attention_dropout", "classifier_dropout", "decoder_layerdrop",
    "decoder_start_token_id", "dropout", "encoder_layerdrop", "forced_eos_token_id", "init_std", "is_encoder_decoder",
    "num_hidden_layers", "scale_embedding", "forced_bos_token_id", "early_stopping", "no_repeat_ngram_size",
    "num_beams", "normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits",
    "classif_dropout", "gradient_checkpointing", "apply_spec_augment", "begin_suppress_tokens", "forced_decoder_ids",
    "mask_feature_length", "mask_feature_min_masks", "mask_feature_prob", "mask_time_length", "mask_time_min_masks",
    "mask_time_prob", "max_length", "median_filter_width", "suppress_tokens", "use_weighted_layer_sum",
    "classifier_proj_size",
)  # fmt: skip
EQUAL_LENGTHS_NOTE = (
    "In training the sequence length is taken for the encoder's input and for the decoder's alike; every layer of both "
    "is counted as a layer."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stack:
    """The sizes of one of the two stacks; `keys_have_bias` is false in Whisper."""

    prefix: str
    attention: GroupedAttention
    intermediate_size: int
    keys_have_bias: bool
    norms: NormPlacement

    def layer(self, indices: tuple[int, ...], *, first: int, source_tokens: int | None, is_decoder: bool) -> Block:
        size, name = self.attention, f"{self.prefix}.layers.{{layer}}"
        inner = dataclasses.replace(size, is_bidirectional=not is_decoder)
        block = decoder_layer(
            layers=indices,
            hidden_size=size.hidden_size,
            mixer=attention_half(inner),
            cross=cross_attention_half(size) if is_decoder else None,
            feed_forward=feed_forward_half(size.hidden_size, self.intermediate_size, gated=False),
            kv=size.kv_state() if is_decoder else None,
            norms=self.norms,
            kind="decoder_layer" if is_decoder else "encoder_layer",
            weights=(
                *self._attention(name, "self_attn"),
                *(self._attention(name, "encoder_attn") if is_decoder else ()),
                *plain_weights(name, size.hidden_size, self.intermediate_size, names=("fc1", "fc2"), bias=True),
                *norm_weights(f"{name}.final_layer_norm", size.hidden_size, bias=True),
            ),
        )
        if not is_decoder:
            return block
        return dataclasses.replace(block, first_named=first, cross=size.cross_state(source_tokens))

    def _attention(self, layer: str, name: str) -> tuple[Weight, ...]:
        size, prefix = self.attention, f"{layer}.{name}"
        square = (size.query_width, size.hidden_size)
        weights = [output_projection(f"{prefix}.out_proj.weight", size)]
        for short in ("q", "k", "v"):
            weights.append(column(f"{prefix}.{short}_proj.weight", square, size.heads, is_linear=True))
            if short != "k" or self.keys_have_bias:
                weights.append(column(f"{prefix}.{short}_proj.bias", (size.query_width,), size.heads))
        return (
            *weights,
            Weight(name=f"{prefix}.out_proj.bias", shape=(size.hidden_size,), part=Part.ATTENTION),
            *norm_weights(f"{prefix}_layer_norm", size.hidden_size, bias=True),
        )


def bart(config: ConfigReader) -> ModelSpec:
    """Return the description of a BART model: learned positions on both sides, norms after each sum."""
    positions = config.size("max_position_embeddings", default=BART_POSITIONS)
    width = config.size("d_model")
    config.ignore(*IGNORED)
    tables = tuple(
        _whole(f"model.{side}.embed_positions.weight", (positions + BART_POSITION_OFFSET, width))
        for side in ("encoder", "decoder")
    )
    norms = tuple(
        weight
        for side in ("encoder", "decoder")
        for weight in norm_weights(f"model.{side}.layernorm_embedding", width, bias=True)
    )
    spec = _model(
        config,
        norms=NormPlacement.POST_RESIDUAL,
        embedding="model.shared.weight",
        others=(*tables, *norms),
        positions=positions,
        source_tokens=None,
    )
    bias = Weight(name="final_logits_bias", shape=(1, spec.vocabulary_size), part=Part.HEAD, is_buffer=True)
    return dataclasses.replace(spec, head=dataclasses.replace(spec.head, weights=(*spec.head.weights, bias)))


def whisper(config: ConfigReader) -> ModelSpec:
    """Return the description of a Whisper model, whose encoder makes as many states of any piece of sound."""
    width, states = config.size("d_model"), config.size("max_source_positions", default=SOUND_STATES)
    positions = config.size("max_target_positions", default=TEXT_POSITIONS)
    bins = config.size("num_mel_bins", default=MEL_BINS)
    config.ignore(*IGNORED)
    stem = (
        _whole("model.encoder.conv1.weight", (width, bins, FRAMES_PER_FILTER)),
        _whole("model.encoder.conv1.bias", (width,)),
        _whole("model.encoder.conv2.weight", (width, width, FRAMES_PER_FILTER)),
        _whole("model.encoder.conv2.bias", (width,)),
        _whole("model.encoder.embed_positions.weight", (states, width)),
        _whole("model.decoder.embed_positions.weight", (positions, width)),
        *norm_weights("model.encoder.layer_norm", width, bias=True),
    )
    return _model(
        config,
        norms=NormPlacement.PRE,
        embedding="model.decoder.embed_tokens.weight",
        others=stem,
        positions=positions,
        source_tokens=states,
    )


def _model(
    config: ConfigReader,
    *,
    norms: NormPlacement,
    embedding: str,
    others: tuple[Weight, ...],
    positions: int,
    source_tokens: int | None,
) -> ModelSpec:
    width, is_sound = config.size("d_model"), source_tokens is not None
    encoders = config.size("encoder_layers", most=MOST_LAYERS)
    decoders = config.size("decoder_layers", most=MOST_LAYERS)
    stacks = {
        side: _Stack(
            prefix=f"model.{side}",
            attention=_attention(width, config.size(f"{side}_attention_heads")),
            intermediate_size=config.size(f"{side}_ffn_dim"),
            keys_have_bias=not is_sound,
            norms=norms,
        )
        for side in ("encoder", "decoder")
    }
    indices = tuple(range(encoders, encoders + decoders))
    decoder = stacks["decoder"]

    def decoding(layers: tuple[int, ...]) -> Block:
        return decoder.layer(layers, first=encoders, source_tokens=source_tokens, is_decoder=True)

    return decoder_model(
        config,
        attention=decoder.attention,
        layers=(
            stacks["encoder"].layer(tuple(range(encoders)), first=0, source_tokens=None, is_decoder=False),
            with_encoder_output(decoding(indices[:1]), width),
            *((decoding(indices[1:]),) if decoders > 1 else ()),
        ),
        tied=config.flag("tie_word_embeddings", default=True),
        max_position_embeddings=positions,
        names=DecoderNames(embedding=embedding, final_norm="model.decoder.layer_norm"),
        norm_bias=True,
        has_final_norm=is_sound,
        other_embeddings=others,
        assumptions=(EQUAL_LENGTHS_NOTE,),
    )


def _attention(width: int, heads: int) -> GroupedAttention:
    return GroupedAttention(
        hidden_size=width, heads=heads, key_value_heads=heads, head_dim=width // heads, has_rotary=False
    )


def _whole(name: str, shape: tuple[int, ...]) -> Weight:
    return Weight(name=name, shape=shape, part=Part.EMBEDDING)


FAMILIES: Mapping[str, Family] = {
    "bart": Family(reader=bart),
    "whisper": Family(reader=whisper),
}

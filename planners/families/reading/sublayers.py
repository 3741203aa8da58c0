"""The halves that decoders' layers are made of, each with its weights and what it caches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from plimsoll.planners.architecture.attention import GroupedAttention, separate_projections, sink_weight
from plimsoll.planners.architecture.decoder import (
    Half,
    attention_half,
    decoder_layer,
    feed_forward_half,
    latent_attention_half,
    norm_weights,
    recurrent_half,
)
from plimsoll.planners.architecture.feed_forward import gated_weights
from plimsoll.planners.architecture.latent_attention import LatentAttention, latent_weights
from plimsoll.planners.architecture.model import Block
from plimsoll.planners.architecture.recurrent import RecurrentMixer
from plimsoll.planners.architecture.sequence_state import KvState
from plimsoll.planners.architecture.sparse_attention import TokenIndexer, indexer_weights
from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.reading.attention import QueryKeyNorm, query_key_norm_weights

LAYER = "model.layers.{layer}"
ATTENTION = f"{LAYER}.self_attn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sublayer:
    """One half of a layer with its weights, and what it caches of a sequence."""

    half: Half
    weights: tuple[Weight, ...]
    kv: KvState | None = None


class Recurrence(Protocol):
    """A kind of recurrence, which knows its own weights."""

    def mixer(self) -> RecurrentMixer:
        """Return what it computes."""
        ...

    def weights(self, prefix: str) -> tuple[Weight, ...]:
        """Return its weights under their published names."""
        ...


def attention_sublayer(
    size: GroupedAttention,
    *,
    bias: bool = False,
    output_bias: bool | None = None,
    norm: QueryKeyNorm = QueryKeyNorm.NONE,
    sinks: str | None = None,
) -> Sublayer:
    """Return grouped attention with separate matrices, and `sinks` of that name; biases are in all or in none unless
    `output_bias` says otherwise of the last."""
    size = replace(size, has_sinks=sinks is not None)
    return Sublayer(
        half=attention_half(size),
        weights=(
            *separate_projections(
                ATTENTION, size, qkv_bias=bias, output_bias=bias if output_bias is None else output_bias
            ),
            *query_key_norm_weights(ATTENTION, size, norm),
            *(() if sinks is None else (sink_weight(sinks, size),)),
        ),
        kv=size.kv_state(),
    )


def latent_sublayer(size: LatentAttention, *, bias: bool, indexer: TokenIndexer | None = None) -> Sublayer:
    """Return latent attention as DeepSeek has it, and the indexer that chooses its tokens where it has one."""
    chooses = () if indexer is None else indexer_weights(f"{ATTENTION}.indexer", indexer)
    return Sublayer(
        half=latent_attention_half(size, indexer),
        weights=(*latent_weights(ATTENTION, size, bias=bias), *chooses),
        kv=size.kv_state(index_width=0 if indexer is None else indexer.head_dim),
    )


def recurrent_sublayer(recurrence: Recurrence, prefix: str) -> Sublayer:
    """Return a recurrence."""
    mixer = recurrence.mixer()
    return Sublayer(half=recurrent_half(mixer), weights=recurrence.weights(prefix), kv=mixer.kv_state())


def gated_sublayer(
    hidden_size: int, intermediate_size: int, *, prefix: str = f"{LAYER}.mlp", bias: bool = False
) -> Sublayer:
    """Return a dense feed-forward with a gate."""
    return Sublayer(
        half=feed_forward_half(hidden_size, intermediate_size, gated=True),
        weights=gated_weights(prefix, hidden_size, intermediate_size, bias=bias),
    )


def layer_of(
    layers: tuple[int, ...],
    hidden_size: int,
    mixer: Sublayer,
    feed_forward: Sublayer,
    *,
    kind: str = "decoder_layer",
    norms: tuple[str, str] = ("input_layernorm", "post_attention_layernorm"),
    norm_bias: bool = False,
) -> Block:
    """Return the layers at these indices: a mixer of tokens and a feed-forward, each with a norm before it."""
    first, second = (norm_weights(f"{LAYER}.{name}", hidden_size, bias=norm_bias) for name in norms)
    return decoder_layer(
        layers=layers,
        hidden_size=hidden_size,
        mixer=mixer.half,
        feed_forward=feed_forward.half,
        kv=mixer.kv,
        kind=kind,
        weights=(*mixer.weights, *feed_forward.weights, *first, *second),
    )

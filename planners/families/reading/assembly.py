"""What nearly every decoder's reader does last: embedding, layers, final norm and head."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from plimsoll.planners.architecture.decoder import embedding_block, head_block, norm_weights, vocabulary_weight
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.reading.config import ConfigReader

Kind = TypeVar("Kind", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderNames:
    """How a family's checkpoints name what stands outside its layers."""

    embedding: str = "model.embed_tokens.weight"
    final_norm: str = "model.norm"
    head: str = "lm_head"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSizes:
    """The sizes of a decoder that are the same for every layer."""

    hidden_size: int
    vocabulary_size: int
    heads: int
    key_value_heads: int
    experts_per_token: int = 0


def decoder_model(
    config: ConfigReader,
    *,
    sizes: DecoderSizes,
    layers: tuple[Block, ...],
    tied: bool,
    max_position_embeddings: int | None = None,
    names: DecoderNames = DecoderNames(),
    norm_bias: bool = False,
    has_norm_weight: bool = True,
    has_final_norm: bool = True,
    head_bias: bool = False,
    other_embeddings: tuple[Weight, ...] = (),
    assumptions: tuple[str, ...] = (),
) -> ModelSpec:
    """Return the model whose layers are given; `other_embeddings` are positions and the like."""
    hidden_size, vocabulary_size = sizes.hidden_size, sizes.vocabulary_size
    embedding = vocabulary_weight(names.embedding, vocabulary_size, hidden_size, Part.EMBEDDING)
    head = () if tied else (vocabulary_weight(f"{names.head}.weight", vocabulary_size, hidden_size, Part.HEAD),)
    bias = (Weight(name=f"{names.head}.bias", shape=(vocabulary_size,), part=Part.HEAD),) if head_bias else ()
    has_norm_weight = has_norm_weight and has_final_norm
    final_norm = norm_weights(names.final_norm, hidden_size, bias=norm_bias) if has_norm_weight else ()
    return ModelSpec(
        name=config.name,
        model_type=config.model_type,
        hidden_size=hidden_size,
        vocabulary_size=vocabulary_size,
        max_position_embeddings=max_position_embeddings or config.optional_size("max_position_embeddings"),
        attention_heads=sizes.heads,
        key_value_heads=sizes.key_value_heads,
        embedding=embedding_block((embedding, *other_embeddings), hidden_size),
        layers=layers,
        head=head_block((*final_norm, *head, *bias), hidden_size, vocabulary_size, has_norm=has_final_norm),
        tied_head=tied,
        experts_per_token=sizes.experts_per_token,
        assumptions=assumptions,
    )


def blocks_by_kind(kinds: Iterable[Kind], block: Callable[[tuple[int, ...], Kind], Block]) -> tuple[Block, ...]:
    """Return one block for each kind of layer, in order of first appearance; `kinds` has one entry a layer."""
    indices: dict[Kind, list[int]] = {}
    for layer, kind in enumerate(kinds):
        indices.setdefault(kind, []).append(layer)
    return tuple(block(tuple(layers), kind) for kind, layers in indices.items())

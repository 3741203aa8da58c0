"""What nearly every decoder's reader does last: embedding, layers, final norm and head."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from plimsoll.planners.architecture.decoder import embedding_block, head_block, norm_weights, vocabulary_weight
from plimsoll.planners.architecture.mixture_of_experts import MixtureOfExperts
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


class AttentionSizes(Protocol):
    """What every form of attention has."""

    @property
    def hidden_size(self) -> int:
        """Return the features of the residual stream."""
        ...

    @property
    def heads(self) -> int:
        """Return the query heads."""
        ...

    @property
    def key_value_heads(self) -> int:
        """Return the heads of keys and values."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSizes:
    """The sizes of a decoder whose layers' attentions differ, or that has none."""

    hidden_size: int
    heads: int
    key_value_heads: int


def decoder_model(
    config: ConfigReader,
    *,
    attention: AttentionSizes,
    layers: tuple[Block, ...],
    mixture: MixtureOfExperts | None = None,
    vocabulary_size: int | None = None,
    tied: bool | None = None,
    max_position_embeddings: int | None = None,
    names: DecoderNames = DecoderNames(),
    norm_bias: bool = False,
    has_norm_weight: bool = True,
    has_final_norm: bool = True,
    head_bias: bool = False,
    other_embeddings: tuple[Weight, ...] = (),
    assumptions: tuple[str, ...] = (),
) -> ModelSpec:
    """Return the model whose layers are given; `other_embeddings` are positions and the like.

    The vocabulary and whether the head is tied, which it mostly is not, are read unless they are given.
    """
    hidden_size, rows = attention.hidden_size, vocabulary_size or config.size("vocab_size")
    if tied is None:
        tied = config.flag("tie_word_embeddings", default=False)
    embedding = vocabulary_weight(names.embedding, rows, hidden_size, Part.EMBEDDING)
    head = () if tied else (vocabulary_weight(f"{names.head}.weight", rows, hidden_size, Part.HEAD),)
    bias = (Weight(name=f"{names.head}.bias", shape=(rows,), part=Part.HEAD),) if head_bias else ()
    has_norm_weight = has_norm_weight and has_final_norm
    final_norm = norm_weights(names.final_norm, hidden_size, bias=norm_bias) if has_norm_weight else ()
    return ModelSpec(
        name=config.name,
        model_type=config.model_type,
        hidden_size=hidden_size,
        vocabulary_size=rows,
        max_position_embeddings=max_position_embeddings or config.optional_size("max_position_embeddings"),
        attention_heads=attention.heads,
        key_value_heads=attention.key_value_heads,
        embedding=embedding_block((embedding, *other_embeddings), hidden_size),
        layers=layers,
        head=head_block((*final_norm, *head, *bias), hidden_size, rows, has_norm=has_final_norm),
        tied_head=tied,
        experts_per_token=0 if mixture is None else mixture.experts_per_token,
        assumptions=assumptions,
    )


def blocks_by_kind(kinds: Iterable[Kind], block: Callable[[tuple[int, ...], Kind], Block]) -> tuple[Block, ...]:
    """Return one block for each kind of layer, in order of first appearance; `kinds` has one entry a layer."""
    indices: dict[Kind, list[int]] = {}
    for layer, kind in enumerate(kinds):
        indices.setdefault(kind, []).append(layer)
    return tuple(block(tuple(layers), kind) for kind, layers in indices.items())

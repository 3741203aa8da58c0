"""What a model is, in numbers a person asks for: parameters, blocks, cache and operations per token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planners.architecture import Block, ModelSpec
from planners.formats import bytes_per_parameter
from service.models import ResolvedModel

CACHE_FORMAT = "bf16"
CACHE_ELEMENT_BYTES = int(bytes_per_parameter(CACHE_FORMAT))

# The backward pass computes gradients for inputs and for weights: twice the
# forward pass (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
TRAINING_FORWARD_PASSES = 3

# Where no length is asked for. Llama 2's, and short enough for every model listed.
DEFAULT_SEQUENCE_LENGTH = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """`active` work on one token: fewer than `total` where a router chooses among experts."""

    total: int
    active: int
    by_part: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDescription:
    """Like layers, or the embedding, or the head. `layers` are the indices of the first and the last."""

    kind: str
    repeats: int
    layers: tuple[int, int] | None
    parameters_each: int
    weights: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers that remember alike; bytes in `kv.format`, before parallelism."""

    kind: str
    layers: int
    heads: int
    head_dim: int
    window: int | None
    bytes_per_token_per_layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDescription:
    """`bytes_per_token` counts the layers whose cache keeps growing with the sequence."""

    format: str
    bytes_per_token: int
    groups: tuple[CacheGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsDescription:
    """Operations for one token of a causal sequence, on the mean of its positions; training is three forwards."""

    sequence_length: int
    forward_flops_per_token: float
    training_flops_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model; `id` is its catalogue id, or the name it was given."""

    id: str
    aliases: tuple[str, ...]
    model_type: str
    parameters: ParameterCounts
    published_parameters: int | None
    layers: int
    hidden_size: int
    vocabulary_size: int
    attention_heads: int
    key_value_heads: int
    max_position_embeddings: int | None
    tied_head: bool
    blocks: tuple[BlockDescription, ...]
    kv: CacheDescription
    flops: FlopsDescription
    config: Mapping[str, Any]
    source: str
    assumptions: tuple[str, ...]


def describe(
    model: ResolvedModel,
    *,
    sequence_length: int = DEFAULT_SEQUENCE_LENGTH,
    aliases: tuple[str, ...] = (),
    published_parameters: int | None = None,
    source: str,
) -> ModelDescription:
    """Return the description of a model; operations are those of a sequence of `sequence_length`."""
    spec = model.spec
    forward_flops = spec.forward_flops_per_token((sequence_length + 1) / 2)
    by_part = {str(part): count for part, count in spec.parameters_by_part().items()}
    return ModelDescription(
        id=model.name,
        aliases=aliases,
        model_type=spec.model_type,
        parameters=ParameterCounts(total=spec.parameters, active=spec.active_parameters, by_part=by_part),
        published_parameters=published_parameters,
        layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        vocabulary_size=spec.vocabulary_size,
        attention_heads=spec.attention_heads,
        key_value_heads=spec.key_value_heads,
        max_position_embeddings=spec.max_position_embeddings,
        tied_head=spec.tied_head,
        blocks=tuple(_block(block) for block in spec.blocks),
        kv=_cache(spec),
        flops=FlopsDescription(
            sequence_length=sequence_length,
            forward_flops_per_token=forward_flops,
            training_flops_per_token=TRAINING_FORWARD_PASSES * forward_flops,
        ),
        config=model.config,
        source=source,
        assumptions=model.assumptions,
    )


def _block(block: Block) -> BlockDescription:
    return BlockDescription(
        kind=block.kind,
        repeats=block.repeats,
        layers=(block.layers[0], block.layers[-1]) if block.layers else None,
        parameters_each=block.elements,
        weights={weight.name.format(layer="*", expert="*"): weight.shape for weight in block.weights},
    )


def _cache(spec: ModelSpec) -> CacheDescription:
    states = [(block.kv, block.repeats) for block in spec.layers if block.kv is not None]
    groups = tuple(
        CacheGroup(
            kind=str(state.kind),
            layers=repeats,
            heads=state.heads,
            head_dim=state.head_dim,
            window=state.window,
            bytes_per_token_per_layer=CACHE_ELEMENT_BYTES * state.elements_per_token,
        )
        for state, repeats in states
    )
    growing_bytes = sum(group.layers * group.bytes_per_token_per_layer for group in groups if group.window is None)
    return CacheDescription(format=CACHE_FORMAT, bytes_per_token=growing_bytes, groups=groups)

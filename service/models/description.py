"""What a model is, in numbers a person asks for: parameters, blocks, cache and operations per token."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.planners.architecture import Block, KvState, ModelSpec
from plimsoll.planners.families.reading.stored_formats import StoredFormats
from plimsoll.planners.formats import bytes_per_parameter
from plimsoll.service.checkpoints.comparison import CheckpointReport

if TYPE_CHECKING:
    from plimsoll.service.models.resolving import ResolvedModel

CACHE_FORMAT = "bf16"
CACHE_ELEMENT_BYTES = int(bytes_per_parameter(CACHE_FORMAT))
# Engines keep a recurrence's own memory in fp32 unless they are told otherwise.
MEMORY_ELEMENT_BYTES = int(bytes_per_parameter("fp32"))

# The backward pass computes gradients for inputs and for weights: twice the
# forward pass (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
TRAINING_FORWARD_PASSES = 3

# Where no length is asked for: Llama 2's, or the longest that the model takes if that is shorter.
DEFAULT_SEQUENCE_LENGTH = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """`active` work on one token: fewer than `total` where a router chooses among experts."""

    total: int
    active: int
    by_part: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDescription:
    """Like layers, or the embedding, or the head. `layers` are the indices of the first and the last.

    `active_parameters_each` work on one token. Operations are those of one token
    at the length that `flops` names.
    """

    kind: str
    repeats: int
    layers: tuple[int, int] | None
    parameters_each: int
    active_parameters_each: int
    forward_flops_per_token_each: float
    weights: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers that remember alike; bytes in `kv.format`, before parallelism.

    Attention keeps a key and a value of `heads` each, a latent layer `latent_width`
    elements, sparse attention `index_width` more. A recurrent layer keeps
    `state_bytes_per_layer` for each sequence and nothing for a token. With a
    `window`, a layer needs no more than that many tokens. A compressed layer keeps
    the window's latents and one entry for each `tokens_per_entry` tokens, whose
    share is what a token adds.
    """

    kind: str
    layers: int
    heads: int
    head_dim: int
    value_dim: int
    latent_width: int
    index_width: int
    window: int | None
    tokens_per_entry: int
    bytes_per_token_per_layer: int
    state_bytes_per_layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDescription:
    """`bytes_per_token` counts the layers whose cache keeps growing with the sequence.

    Within every window, all layers grow, by `bytes_per_token_within_windows`.
    `state_bytes` are of fixed size for each sequence.
    """

    format: str
    bytes_per_token: int
    bytes_per_token_within_windows: int
    state_bytes: int
    groups: tuple[CacheGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsDescription:
    """Operations for one token of a sequence, on the mean of its positions; training is three forwards."""

    sequence_length: int
    forward_flops_per_token: float
    training_flops_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model; `id` is its catalogue id, or the name it was given.

    `stored` are the formats of the checkpoint, where its name or its config says that it is quantized.
    """

    id: str
    aliases: tuple[str, ...]
    model_type: str
    parameters: ParameterCounts
    published_parameters: int | None
    stored: StoredFormats | None
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
    checkpoint: CheckpointReport | None
    assumptions: tuple[str, ...]


def describe(
    model: ResolvedModel,
    *,
    sequence_length: int | None = None,
    aliases: tuple[str, ...] = (),
    published_parameters: int | None = None,
    source: str,
) -> ModelDescription:
    """Return the description of a model; operations are those of a sequence of `sequence_length`."""
    spec = model.spec
    length = sequence_length or min(DEFAULT_SEQUENCE_LENGTH, spec.max_position_embeddings or DEFAULT_SEQUENCE_LENGTH)
    # Under a causal mask a token attends to half the sequence and itself.
    context_tokens = (length + 1) / 2
    forward_flops = spec.forward_flops_per_token(context_tokens)
    by_part = {str(part): count for part, count in spec.parameters_by_part().items()}
    return ModelDescription(
        id=model.name,
        aliases=aliases,
        model_type=spec.model_type,
        parameters=ParameterCounts(total=spec.parameters, active=spec.active_parameters, by_part=by_part),
        published_parameters=published_parameters,
        stored=model.stored,
        layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        vocabulary_size=spec.vocabulary_size,
        attention_heads=spec.attention_heads,
        key_value_heads=spec.key_value_heads,
        max_position_embeddings=spec.max_position_embeddings,
        tied_head=spec.tied_head,
        blocks=tuple(_block(block, spec.experts_per_token, context_tokens) for block in spec.blocks),
        kv=_cache(spec),
        flops=FlopsDescription(
            sequence_length=length,
            forward_flops_per_token=forward_flops,
            training_flops_per_token=TRAINING_FORWARD_PASSES * forward_flops,
        ),
        config=model.config,
        source=source,
        checkpoint=model.checkpoint,
        assumptions=model.assumptions,
    )


def _block(block: Block, experts_per_token: int, context_tokens: float) -> BlockDescription:
    idle = sum(
        weight.elements // weight.experts * (weight.experts - experts_per_token)
        for weight in block.weights
        if weight.experts > 1
    )
    return BlockDescription(
        kind=block.kind,
        repeats=block.repeats,
        layers=(block.layers[0], block.layers[-1]) if block.layers else None,
        parameters_each=block.elements,
        active_parameters_each=block.elements - idle,
        forward_flops_per_token_each=sum(
            operation.forward_flops_per_token(context_tokens) for operation in block.operations
        ),
        weights={weight.name.format(layer="*", expert="*"): weight.shape for weight in block.weights},
    )


def _cache(spec: ModelSpec) -> CacheDescription:
    states = [(block.kv, block.repeats) for block in spec.layers if block.kv is not None]
    groups = tuple(_cache_group(state, layers) for state, layers in states)
    token_bytes = [group.layers * group.bytes_per_token_per_layer for group in groups]
    grows = [state.window is None or state.compressed is not None for state, _ in states]
    return CacheDescription(
        format=CACHE_FORMAT,
        bytes_per_token=sum(itertools.compress(token_bytes, grows)),
        bytes_per_token_within_windows=sum(token_bytes),
        state_bytes=sum(group.layers * group.state_bytes_per_layer for group in groups),
        groups=groups,
    )


def _cache_group(state: KvState, layers: int) -> CacheGroup:
    recurrent = state.recurrent
    return CacheGroup(
        kind=str(state.kind),
        layers=layers,
        heads=state.heads,
        head_dim=state.head_dim,
        value_dim=state.head_dim if state.value_dim is None else state.value_dim,
        latent_width=state.latent_width,
        index_width=state.index_width,
        window=state.window,
        tokens_per_entry=1 if state.compressed is None else state.compressed.tokens_per_entry,
        bytes_per_token_per_layer=CACHE_ELEMENT_BYTES * state.elements_per_token,
        state_bytes_per_layer=0
        if recurrent is None
        else CACHE_ELEMENT_BYTES * recurrent.convolution_elements + MEMORY_ELEMENT_BYTES * recurrent.memory_elements,
    )

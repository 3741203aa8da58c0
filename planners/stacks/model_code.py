"""What a model is made of that a stack with model code of its own may have no code for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from plimsoll.planners.architecture import KvKind, ModelSpec, Operation, OperationKind, Part, ScanKernel
from plimsoll.planners.ground.identity import ByIdentity

# Models whose traits are kept between questions.
MOST_KEPT_MODELS = 1024


def traits_of(model: ModelSpec) -> frozenset[str]:
    """Return the names of `TRAITS` that the model has."""
    return _traits(ByIdentity(model))


@functools.lru_cache(maxsize=MOST_KEPT_MODELS)
def _traits(same: ByIdentity[ModelSpec]) -> frozenset[str]:
    return frozenset(trait for trait, (_, has) in TRAITS.items() if has(same.value))


def _operations(model: ModelSpec, kind: OperationKind) -> list[Operation]:
    return [operation for block in model.layers for operation in block.operations if operation.kind is kind]


def _is_encoder_decoder(model: ModelSpec) -> bool:
    return any(block.cross is not None for block in model.layers)


def _is_encoder(model: ModelSpec) -> bool:
    attention = _operations(model, OperationKind.ATTENTION)
    return bool(attention) and all(operation.is_bidirectional for operation in attention)


def _has_cache(model: ModelSpec, kind: KvKind) -> bool:
    return any(block.kv is not None and block.kv.kind is kind for block in model.layers)


def _scans(model: ModelSpec, *kernels: ScanKernel) -> bool:
    return any(scan.scan and scan.scan.kernel in kernels for scan in _operations(model, OperationKind.SCAN))


def _has_no_positions(model: ModelSpec) -> bool:
    """Return whether attention alone, without a rotation or an embedding, sees positions: by a bias on its scores."""
    is_recurrent = bool(_operations(model, OperationKind.SCAN))
    is_told = model.has_learned_positions or bool(_operations(model, OperationKind.ROTARY))
    return not (is_told or is_recurrent or _is_encoder_decoder(model))


def _has_sinks(model: ModelSpec) -> bool:
    return any(operation.has_sinks for operation in _operations(model, OperationKind.ATTENTION))


def _has_wider_keys(model: ModelSpec) -> bool:
    attention = _operations(model, OperationKind.ATTENTION)
    return any(operation.key_dim != operation.value_dim for operation in attention)


def _chooses_tokens(model: ModelSpec) -> bool:
    return any(block.kv is not None and block.kv.index_width > 0 for block in model.layers)


def _sees(model: ModelSpec) -> bool:
    return any(weight.part is Part.VISION for block in model.blocks for weight in block.weights)


# Each trait in words that follow "code for", and which models have it. Profiles name them in their table `models`.
TRAITS: Mapping[str, tuple[str, Callable[[ModelSpec], bool]]] = {
    "encoder": ("bidirectional encoders", _is_encoder),
    "encoder_decoder": ("encoder-decoder models", _is_encoder_decoder),
    "latent_attention": ("multi-head latent attention", lambda model: _has_cache(model, KvKind.LATENT)),
    "compressed_attention": ("compressed attention", lambda model: _has_cache(model, KvKind.COMPRESSED)),
    "mamba": ("Mamba layers", lambda model: _scans(model, ScanKernel.SELECTIVE, ScanKernel.SELECTIVE_APART)),
    "mamba2": ("Mamba-2 layers", lambda model: _scans(model, ScanKernel.STATE_SPACE)),
    "delta_rule": (
        "delta-rule linear attention",
        lambda model: _scans(model, ScanKernel.GATED_DELTA, ScanKernel.CHANNEL_DELTA),
    ),
    "learned_positions": ("learned positions", lambda model: model.has_learned_positions),
    "position_bias": ("position biases such as ALiBi", _has_no_positions),
    "scaled_positions": ("scaled rotary positions", lambda model: model.scales_positions),
    "sliding_window": ("sliding windows", lambda model: _has_cache(model, KvKind.SLIDING_WINDOW)),
    "sinks": ("attention sinks", _has_sinks),
    "wider_keys": ("keys wider than values", _has_wider_keys),
    "chosen_tokens": ("attention to chosen tokens", _chooses_tokens),
    "experts": ("mixtures of experts", lambda model: model.experts_per_token > 0),
    "vision": ("vision or audio towers", _sees),
}


def in_words(traits: frozenset[str]) -> str:
    """Return what the traits are called, joined by commas, in the table's order."""
    return ", ".join(words for trait, (words, _) in TRAITS.items() if trait in traits)

"""The parts of transformers' decoders, wherever their family has them."""

from __future__ import annotations

from typing import Any

from torch import nn

from plimsoll.planners.families import traits
from plimsoll.planners.families.family import PartNames


def decoder_layers(model: Any) -> Any:
    """Return the decoder's layers, a list of modules."""
    return getattr(_decoder(model), _names(model).layers)


def token_embedding(model: Any) -> Any:
    """Return the table of tokens; None on a pipeline's stage without it."""
    return getattr(_decoder(model), _names(model).embedding)


def last_norm(model: Any) -> nn.Module:
    """Return the norm before the head."""
    norm: nn.Module = getattr(_decoder(model), _names(model).norm)
    return norm


def head(model: Any) -> Any:
    """Return the projection to the vocabulary."""
    return model.lm_head


def has_tied_head(model: Any) -> bool:
    """Return whether the head multiplies by the table of tokens."""
    return head(model).weight is token_embedding(model).weight


def _decoder(model: Any) -> Any:
    return model.get_submodule(_names(model).decoder)


def _names(model: Any) -> PartNames:
    return traits(model.config.model_type).parts

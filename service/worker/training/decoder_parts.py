"""The parts of transformers' decoders, wherever their family has them."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn

from plimsoll.planners.families import traits
from plimsoll.planners.families.family import PartNames

# What a decoder multiplies its embeddings by, wherever they come from: Granite's own name (transformers 5.23,
# models/granite/modeling_granite.py, `GraniteModel.forward`).
MULTIPLIER = "embedding_multiplier"


class _Unscaled:
    """A factor that leaves a tensor as it is, and makes no other."""

    def __rmul__(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def decoder_of(model: Any) -> Any:
    """Return the module that holds all but the head."""
    return model.get_submodule(_names(model).decoder)


def decoder_layers(model: Any) -> Any:
    """Return the decoder's layers, a list of modules."""
    return getattr(decoder_of(model), _names(model).layers)


def token_embedding(model: Any) -> Any:
    """Return the table of tokens; None on a pipeline's stage without it."""
    return getattr(decoder_of(model), _names(model).embedding)


def last_norm(model: Any) -> nn.Module:
    """Return the norm before the head."""
    norm: nn.Module = getattr(decoder_of(model), _names(model).norm)
    return norm


def head(model: Any) -> Any:
    """Return the projection to the vocabulary."""
    return model.lm_head


def leave_layers(model: Any, first: int, last: int) -> None:
    """Leave the decoder its layers from the first to the last, both included."""
    kept = list(decoder_layers(model))[first : last + 1]
    setattr(decoder_of(model), _names(model).layers, nn.ModuleList(kept))


def take_embedding(model: Any) -> None:
    """Take the table of tokens away, with what its output is multiplied by: `inputs_embeds` is taken as it comes."""
    decoder = decoder_of(model)
    setattr(decoder, _names(model).embedding, None)
    if hasattr(decoder, MULTIPLIER):
        setattr(decoder, MULTIPLIER, _Unscaled())


def take_head(model: Any) -> None:
    """Take the norm and the head away, with what logits are scaled by or capped at: the last layer's output is left."""
    setattr(decoder_of(model), _names(model).norm, nn.Identity())
    model.lm_head = nn.Identity()

    def forward(self: Any, **inputs: Any) -> Any:
        from transformers.modeling_outputs import CausalLMOutput

        return CausalLMOutput(logits=decoder_of(self)(**inputs).last_hidden_state)

    model.forward = types.MethodType(forward, model)


def has_tied_head(model: Any) -> bool:
    """Return whether the head multiplies by the table of tokens."""
    return head(model).weight is token_embedding(model).weight


def _names(model: Any) -> PartNames:
    return traits(model.config.model_type).parts

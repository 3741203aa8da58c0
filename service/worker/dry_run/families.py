"""By which names transformers' code and configs hold a decoder's parts, and why some families are not traced.

Free of torch, so that a request can be refused before it is queued. Source of every entry: the family's modelling
file in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# By which names configs tell their number of layers and the features of their residual stream.
DEPTH_KEYS = ("num_hidden_layers", "n_layer")
HIDDEN_KEYS = ("hidden_size", "n_embd")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartNames:
    """Where a decoder has its parts: `decoder` is the path of the module that holds all but the head, which is `lm_head`."""

    decoder: str = "model"
    embedding: str = "embed_tokens"
    layers: str = "layers"
    norm: str = "norm"


LLAMA_NAMES = PartNames()
GPT_2_NAMES = PartNames(decoder="transformer", embedding="wte", layers="h", norm="ln_f")
# Families whose parts are not called as Llama's are.
OTHER_NAMES: Mapping[str, PartNames] = {
    "gpt2": GPT_2_NAMES,
    "gpt_bigcode": GPT_2_NAMES,
    "gpt_neox": PartNames(decoder="gpt_neox", embedding="embed_in", norm="final_layer_norm"),
    "opt": PartNames(decoder="model.decoder", norm="final_layer_norm"),
    "phi": PartNames(norm="final_layernorm"),
}
# Those whose layers' matrices are transformers' Conv1D, with the input's features first.
CONV1D_MODEL_TYPES = ("gpt2",)


def part_names(model_type: str) -> PartNames:
    """Return where a family's decoders have their parts."""
    return OTHER_NAMES.get(model_type, LLAMA_NAMES)


def depth_key(config: Mapping[str, Any]) -> str:
    """Return by which name a config tells its number of layers."""
    return next(key for key in DEPTH_KEYS if key in config)


def number_of_layers(config: Mapping[str, Any]) -> int:
    """Return a config's number of layers."""
    return int(config[depth_key(config)])


def hidden_size(config: Mapping[str, Any]) -> int:
    """Return the features of a config's residual stream."""
    return int(next(config[key] for key in HIDDEN_KEYS if key in config))

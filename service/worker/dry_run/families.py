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
    """Where a decoder has its parts: `decoder` is the path of the module that holds all but `lm_head`."""

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
# Those whose experts add biases and are clamped, which no dealing out to other ranks does here.
BIASED_EXPERT_MODEL_TYPES = ("gpt_oss",)
# Why a family that transformers can build is not traced.
_LOOPS = "transformers goes through its recurrence in a loop of its own where the kernels that train it are not there"
_EVERY_EXPERT = "transformers' code gives every token to every expert"
_BY_VALUE = "transformers sends tokens to its experts by their values, which a trace has not"
_OWN_ATTENTION = "transformers' code computes its attention in no kernel that a trace knows"
_OWN_CODE = "its code lies beside its weights and is not transformers'"
NOT_TRACED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "bamba", "falcon_mamba", "granitemoehybrid", "jamba", "mamba", "mamba2",
            "nemotron_h", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
        ),
        _LOOPS,
    ),
    **dict.fromkeys(("llama4", "llama4_text"), _EVERY_EXPERT),
    **dict.fromkeys(("dbrx",), _BY_VALUE),
    **dict.fromkeys(("bloom", "falcon", "gpt_neo", "gptj", "mpt"), _OWN_ATTENTION),
    **dict.fromkeys(
        (
            "aquila", "baichuan", "bailing_moe_v2", "chatglm", "deepseek", "internlm2", "kimi_k2", "mimo",
            "minicpm", "nemotron-nas", "qwen",
        ),
        _OWN_CODE,
    ),
}  # fmt: skip


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

"""A config in the arguments of torchtune's own model builders, where one of them makes that model.

Source: torchtune 0.6.1, torchtune/models/*/_component_builders.py and _model_builders.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.questions import Lora
from plimsoll.service.launch.model_facts import rope_factor, rope_kind

# Matrices that adapters stand beside, as torchtune calls those of the attention; the feed-forward's are one choice.
ATTENTION_MODULES: Mapping[str, str] = {
    "q_proj": "q_proj",
    "k_proj": "k_proj",
    "v_proj": "v_proj",
    "o_proj": "output_proj",
}
FEED_FORWARD_MODULES = frozenset({"gate_proj", "up_proj", "down_proj"})
LLAMA_2_THETA = 10_000.0
TIED_KEY = "tie_word_embeddings"
# Biases that torchtune's builders have no argument for.
BIASES = ("attention_bias", "mlp_bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """A builder by the folder of `torchtune.models` that has it, and what it is told of a model beside its sizes."""

    folder: str
    told: Mapping[str, Any]


def builder_of(config: Mapping[str, Any]) -> Builder | None:
    """Return the builder that makes a config's model, None where none does."""
    family, is_tied = config.get("model_type"), bool(config.get(TIED_KEY))
    if family == "gemma":
        return Builder(folder="gemma", told={"head_dim": config["head_dim"]})
    if family not in ("llama", "mistral", "qwen2") or not _has_usual_matrices(config):
        return None
    match family, rope_kind(config), is_tied:
        case "llama", "llama3", True:
            return Builder(folder="llama3_2", told={"scale_factor": rope_factor(config), TIED_KEY: True})
        case "llama", "llama3", False:
            return Builder(folder="llama3_1", told={"scale_factor": rope_factor(config)})
        case "llama", "default", False:
            is_second = config.get("rope_theta", LLAMA_2_THETA) == LLAMA_2_THETA
            return Builder(folder="llama2" if is_second else "llama3", told={})
        case "mistral", "default", False:
            return Builder(folder="mistral", told={})
        case "qwen2", "default", _:
            return Builder(folder="qwen2", told={TIED_KEY: is_tied})
    return None


def _has_usual_matrices(config: Mapping[str, Any]) -> bool:
    """Return whether heads divide the hidden features, and no matrix has a bias but Qwen's three."""
    heads_of = config["hidden_size"] // config["num_attention_heads"]
    return (config.get("head_dim") or heads_of) == heads_of and not any(config.get(bias) for bias in BIASES)


def model_arguments(config: Mapping[str, Any], sequence_length: int) -> dict[str, Any]:
    """Return the sizes that every builder takes; what changes no size of a tensor stays as the builder has it."""
    heads = config["num_attention_heads"]
    return {
        "vocab_size": config["vocab_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "embed_dim": config["hidden_size"],
        "intermediate_dim": config["intermediate_size"],
        "max_seq_len": longest_sequence(config, sequence_length),
    }


def longest_sequence(config: Mapping[str, Any], sequence_length: int) -> int:
    """Return the positions that the rotary angles are made for."""
    return max(int(config.get("max_position_embeddings", 0)), sequence_length)


def names_adapters(lora: Lora) -> bool:
    """Return whether torchtune can be told these matrices: any of the attention's, and the feed-forward's or none."""
    targets = adapted(lora)
    others = targets - ATTENTION_MODULES.keys()
    return others in (frozenset(), FEED_FORWARD_MODULES) and others != targets


def adapted(lora: Lora) -> frozenset[str]:
    """Return the last names of the matrices that adapters stand beside."""
    names = Lora().target_modules if lora.targets_all_linear else lora.target_modules
    return frozenset(name.rsplit(".", 1)[-1] for name in names)


def adapter_arguments(lora: Lora, *, in_four_bits: bool) -> dict[str, Any]:
    """Return what a builder of a model with adapters is told besides."""
    targets = adapted(lora)
    return {
        "lora_attn_modules": [module for name, module in ATTENTION_MODULES.items() if name in targets],
        "apply_lora_to_mlp": not FEED_FORWARD_MODULES.isdisjoint(targets),
        "lora_rank": lora.rank,
        "lora_alpha": 2 * lora.rank,
        **({} if lora.dropout is None else {"lora_dropout": lora.dropout}),
        "quantize_base": in_four_bits,
    }

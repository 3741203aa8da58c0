"""The model that a command's dimensions describe, as a `config.json` of the family whose layers are the same.

Source: megatron/training/arguments.py; the keys of configs are transformers'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.service.stacks.megatron.model import GPT2

# Megatron-LM's default where a command does not say how many experts a token goes to (transformer_config.py).
EXPERTS_PER_TOKEN = 2
Values = Mapping[str, Any]


def told_config(values: Values) -> dict[str, Any]:
    """Return the model as a `config.json`: Llama-like where the MLP is gated, GPT-like where it is not."""
    return _llama_config(values) if values.get("is_gated") else _gpt2_config(values)


def _gpt2_config(values: Values) -> dict[str, Any]:
    hidden = int(values["hidden"])
    return {
        "model_type": GPT2,
        "n_embd": hidden,
        "n_layer": values["layers"],
        "n_head": values["heads"],
        "n_inner": values.get("intermediate", 4 * hidden),
        "n_positions": values.get("positions", values["sequence_length"]),
        "vocab_size": values["vocabulary"],
    }


def _llama_config(values: Values) -> dict[str, Any]:
    """Return a config of Llama's family: norms of queries and keys are Qwen 3's, biases of their matrices Qwen 2's."""
    hidden, heads = int(values["hidden"]), int(values["heads"])
    config = {
        "model_type": "qwen3" if values.get("query_norm") else "qwen2" if values.get("query_bias") else "llama",
        "hidden_size": hidden,
        "num_hidden_layers": values["layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": values.get("query_groups", heads),
        "head_dim": values.get("head_dim", hidden // max(heads, 1)),
        # Megatron's default for a gated MLP: two thirds of 4 x hidden, rounded down to a multiple of 64.
        "intermediate_size": values.get("intermediate", (4 * hidden * 2 // 3) // 64 * 64),
        "vocab_size": values["vocabulary"],
        "max_position_embeddings": values.get("positions", values["sequence_length"]),
        "tie_word_embeddings": not values.get("is_untied"),
    }
    return {**config, **_experts(values, config["intermediate_size"])} if values.get("experts") else config


def _experts(values: Values, intermediate: int) -> dict[str, Any]:
    """Return what a config says of experts: Qwen 3's where queries and keys have norms, else Mixtral's."""
    width = values.get("expert_intermediate", intermediate)
    per_token = {"num_experts_per_tok": values.get("experts_per_token", EXPERTS_PER_TOKEN)}
    if values.get("query_norm"):
        return {
            "model_type": "qwen3_moe",
            "num_experts": values["experts"],
            "moe_intermediate_size": width,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            **per_token,
        }
    return {"model_type": "mixtral", "num_local_experts": values["experts"], "intermediate_size": width, **per_token}

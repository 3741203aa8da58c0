"""The models of the measured rows, described from the dimensions that the rows name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Families whose layers differ from Llama's, by the start of the row's model name.
FAMILIES = {
    "deepseek-v2": "deepseek_v2",
    "deepseek-v3": "deepseek_v3",
    "falcon": "falcon",
    "gemma2": "gemma2",
    "gemma": "gemma",
    "gpt2": "gpt2",
    "mixtral": "mixtral",
    "mpt": "mpt",
    "phi-3": "phi3",
    "phi": "phi",
    "pythia": "gpt_neox",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "santacoder": "gpt_bigcode",
    "stablelm": "gpt_neox",
}
# Llama 3.2 1B and 3B and Gemma use the embedding's matrix as head; so does Santacoder.
TIED = ("llama3.2", "gemma", "santacoder")
# DeepSeek-V2 and V3, config.json of the published checkpoints: the latent attention's widths.
LATENT = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
# bigcode/gpt_bigcode-santacoder's config.json; GPT-BigCode's own default is 1,024.
POSITIONS = {"santacoder": 2048}
# Gemma 7B's and 2 9B's heads are wider than hidden size over heads (their config.json).
HEAD_DIM = {"gemma-7b": 256, "gemma-2b": 256, "gemma2-9b": 256}
MIXTURE = re.compile(
    r"E(?P<experts>\d+) top(?P<top>\d+) moe_ffn(?P<inner>\d+) shared(?P<shared>\d+) dense(?P<dense>\d+)"
)
# Mixtral 8x7B's config.json.
MIXTRAL = {"num_local_experts": 8, "num_experts_per_tok": 2}


# The source cuts DeepSeek to four layers, the first of them dense: three dense ones, as the rows of V3 repeat from the
# whole model, would hold 44 GiB less than both the source's measurement and its own prediction.
def measured_config(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the config of a row's dimensions."""
    name = row["model"]
    family = next((family for start, family in FAMILIES.items() if name.startswith(start)), "llama")
    config: dict[str, Any] = {
        "model_type": family,
        "hidden_size": int(row["hidden"]),
        "num_hidden_layers": int(row["layers"]),
        "num_attention_heads": int(row["heads"]),
        "num_key_value_heads": int(row["kv_heads"]),
        "intermediate_size": int(row["ffn"]),
        "vocab_size": int(row["vocab"]),
        "tie_word_embeddings": row.get("tied_embeddings") == "1" or name.startswith(TIED),
    }
    if name in HEAD_DIM:
        config["head_dim"] = HEAD_DIM[name]
    if name in POSITIONS:
        config["n_positions"] = POSITIONS[name]
    if family == "mixtral":
        config.update(MIXTRAL)
    mixture = MIXTURE.match(row.get("moe") or "")
    if mixture:
        config.update(LATENT)
        config.update(
            n_routed_experts=int(mixture["experts"]),
            num_experts_per_tok=int(mixture["top"]),
            moe_intermediate_size=int(mixture["inner"]),
            n_shared_experts=int(mixture["shared"]),
            first_k_dense_replace=1 if "cut to" in name else int(mixture["dense"]),
        )
    return config

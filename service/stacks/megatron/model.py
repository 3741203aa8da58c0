"""A model's dimensions as Megatron-LM's own arguments, where its plain transformer is the model.

Megatron-LM makes a decoder from numbers: norms before both halves, grouped
attention, and a feed-forward that may be gated or of experts. Names: Megatron-LM,
`megatron/training/arguments.py`; the keys of configs are transformers'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.service.launch.model_facts import norm_epsilon, rope_factor, rope_kind, rope_theta, slides
from plimsoll.service.launch.options import Value
from plimsoll.service.launch.training import Placeholder, TrainingLaunch, given_reasons
from plimsoll.service.stacks.megatron.flags import FLAGS
from plimsoll.service.workloads.commands.flags import named

# Families whose layer is Llama's, with one difference each that Megatron-LM has an option for.
LLAMA_FAMILY = frozenset({"llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"})
WITH_QUERY_BIAS = frozenset({"qwen2"})
WITH_QUERY_NORM = frozenset({"qwen3", "qwen3_moe"})
WITH_EXPERTS = frozenset({"mixtral", "qwen3_moe"})
# Latent attention, shared experts, dense layers before mixtures, routers with a balancing bias: its configs describe
# them, though this service does not write them as arguments.
LATENT_FAMILIES = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2"})
SHARED_EXPERT_FAMILIES = frozenset({"qwen2_moe", "glm4_moe"})
GPT2 = "gpt2"

# What transformers takes where a config leaves a key away (configuration_gpt2.py).
GPT2_NORM_EPSILON = 1e-5
GPT2_DROPOUT = 0.1


def why_not_plain(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return why Megatron-LM's arguments cannot describe a model."""
    family = config.get("model_type")
    if family == GPT2:
        return ()
    if family not in LLAMA_FAMILY:
        return (f"This service does not write Megatron-LM's arguments for {family} yet.",)
    return given_reasons(
        (bool(config.get("attention_bias")), "Megatron-LM has no option for biases in the attention's matrices alone."),
        (bool(config.get("mlp_bias")), "Megatron-LM has no option for biases in the feed-forward's matrices alone."),
        (slides(config), "Sliding windows are not written for Megatron-LM."),
        (
            bool(config.get("mlp_only_layers")),
            "Layers without experts among those with are not written for Megatron-LM.",
        ),
        (config.get("decoder_sparse_step", 1) != 1, "Experts in every few layers are not written for Megatron-LM."),
        (rope_kind(config) not in ("default", "llama3"), "Megatron-LM scales rotary positions as Llama 3 does only."),
    )


def model_options(launch: TrainingLaunch) -> dict[str, Value]:
    """Return the arguments that make the model; see `why_not_plain` first."""
    config = launch.model_config
    if config["model_type"] == GPT2:
        return _gpt2_options(config)
    return {**_llama_options(launch), **_expert_options(config)}


def gpt2_sizes(config: Mapping[str, Any]) -> dict[str, Value]:
    """Return the dimensions of a GPT-2, by the names that Megatron-LM and its offspring share."""
    return {
        **named(
            FLAGS,
            layers=config["n_layer"],
            hidden=config["n_embd"],
            intermediate=config.get("n_inner") or 4 * config["n_embd"],
            heads=config["n_head"],
            positions=config["n_positions"],
        ),
        "attention-dropout": config.get("attn_pdrop", GPT2_DROPOUT),
        "hidden-dropout": config.get("resid_pdrop", GPT2_DROPOUT),
    }


def llama_sizes(launch: TrainingLaunch) -> dict[str, Value]:
    """Return the dimensions of a Llama-like model, by the names that Megatron-LM and its offspring share."""
    config = launch.model_config
    heads = config["num_attention_heads"]
    return named(
        FLAGS,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        heads=heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        positions=max(launch.question.sequence_length, config.get("max_position_embeddings") or 0),
    )


def _gpt2_options(config: Mapping[str, Any]) -> dict[str, Value]:
    return {
        **gpt2_sizes(config),
        **named(FLAGS, vocabulary=config["vocab_size"]),
        "position-embedding-type": "learned_absolute",
        "normalization": "LayerNorm",
        "norm-epsilon": config.get("layer_norm_epsilon", GPT2_NORM_EPSILON),
    }


def _llama_options(launch: TrainingLaunch) -> dict[str, Value]:
    config = launch.model_config
    heads = config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    family = config["model_type"]
    return {
        **llama_sizes(launch),
        **named(
            FLAGS,
            groups_queries=groups != heads,
            query_groups=groups if groups != heads else None,
            vocabulary=config["vocab_size"],
        ),
        "position-embedding-type": "rope",
        "rotary-base": _whole(rope_theta(launch)),
        "use-rope-scaling": rope_kind(config) == "llama3",
        "rope-scaling-factor": rope_factor(config),
        "normalization": "RMSNorm",
        "norm-epsilon": norm_epsilon(launch),
        **named(FLAGS, is_gated=True),
        "disable-bias-linear": True,
        "add-qkv-bias": family in WITH_QUERY_BIAS,
        "qk-layernorm": family in WITH_QUERY_NORM,
        **named(FLAGS, is_untied=not config.get("tie_word_embeddings", False)),
        "attention-dropout": config.get("attention_dropout", 0.0),
        "hidden-dropout": 0.0,
    }


def _expert_options(config: Mapping[str, Any]) -> dict[str, Value]:
    if config["model_type"] not in WITH_EXPERTS:
        return {}
    return {
        **named(
            FLAGS,
            experts=config.get("num_local_experts") or config.get("num_experts"),
            experts_per_token=config["num_experts_per_tok"],
            expert_intermediate=config.get("moe_intermediate_size") or config["intermediate_size"],
        ),
        "moe-router-load-balancing-type": "aux_loss",
        "moe-token-dispatcher-type": "alltoall",
        "moe-grouped-gemm": True,
    }


def _whole(base: float | Placeholder) -> Value:
    """Return the base as the whole number that Megatron-LM's option takes."""
    return base if isinstance(base, Placeholder) else round(base)

"""nanotron's YAML, for its Llama.

Keys: huggingface/nanotron, `src/nanotron/config/config.py`, `parallelism_config.py`
and `models_config.py` of its main branch; what is on the package index as 0.4 is
of 2024 and has neither recompute nor a rotary base.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plimsoll.service.launch.model_facts import norm_epsilon, rope_kind, rope_theta
from plimsoll.service.launch.script import OWN_SCRIPT, Script
from plimsoll.service.launch.training import (
    LEARNING_RATE,
    SEED,
    Target,
    TrainingLaunch,
    chosen_dtypes,
    given_reasons,
)
from plimsoll.service.launch.yaml_text import yaml_text

# torch.optim.AdamW's defaults but for Llama's second beta, weight decay and clipping
# (Touvron et al. 2023, arXiv:2302.13971, section 2.3); required, and the reader's to change.
ADAM_BETAS = (0.9, 0.95)
ADAM_EPSILON = 1.0e-8
WEIGHT_DECAY = 0.1
CLIP_GRADIENT = 1.0
INITIAL_DEVIATION = 0.02  # transformers' LlamaConfig.initializer_range
# A plan without a token budget has no number of steps; nanotron wants one.
STEPS = 1000


def _why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    question, config = launch.question, launch.model_config
    return given_reasons(
        *chosen_dtypes(question, "nanotron"),
        (config.get("model_type") != "llama", "nanotron's own model is Llama."),
        (bool(config.get("attention_bias") or config.get("mlp_bias")), "nanotron's Llama has no biases."),
        (rope_kind(config) != "default", "nanotron does not scale rotary positions."),
        (question.attention != "flash", "nanotron's Llama needs flash attention."),
    )


def nanotron_yaml(launch: TrainingLaunch) -> str:
    """Return the run's config; dp, micro-batch and accumulation multiply out to the plan's batch."""
    question, layout = launch.question, launch.layout
    return yaml_text(
        {
            "general": {"project": "plimsoll", "run": "plan", "seed": SEED},
            "parallelism": {
                "dp": layout.data_parallel,
                "pp": layout.pipeline_parallel,
                "tp": layout.tensor_parallel,
                "pp_engine": "afab" if layout.pipeline_schedule == "gpipe" else "1f1b",
                "tp_mode": "REDUCE_SCATTER" if layout.sequence_parallel else "ALL_REDUCE",
                # Asynchronous products gather each matrix's input a second time; the plan counts without.
                "tp_linear_async_communication": False,
                "recompute_layer": layout.recompute == "full",
            },
            "model": {
                "dtype": "bfloat16",
                "init_method": {"std": INITIAL_DEVIATION},
                "model_config": _model_config(launch),
            },
            "tokenizer": {"tokenizer_name_or_path": launch.model_path},
            "tokens": {
                "sequence_length": question.sequence_length,
                "train_steps": launch.plan.run.steps or STEPS,
                "micro_batch_size": layout.micro_batch_size,
                "batch_accumulation_per_replica": layout.gradient_accumulation_steps,
            },
            "optimizer": _optimizer(layout.zero_stage),
        }
    )


def _model_config(launch: TrainingLaunch) -> dict[str, Any]:
    config = launch.model_config
    heads = config["num_attention_heads"]
    return {
        "is_llama_config": True,
        "hidden_act": config.get("hidden_act", "silu"),
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "max_position_embeddings": max(launch.question.sequence_length, config.get("max_position_embeddings") or 0),
        "num_attention_heads": heads,
        "num_hidden_layers": config["num_hidden_layers"],
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "rms_norm_eps": norm_epsilon(launch),
        "rope_theta": rope_theta(launch),
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "vocab_size": config["vocab_size"],
    }


def _optimizer(zero_stage: int) -> dict[str, Any]:
    return {
        "zero_stage": zero_stage,
        "weight_decay": WEIGHT_DECAY,
        "clip_grad": CLIP_GRADIENT,
        "accumulate_grad_in_fp32": True,
        "optimizer_factory": {
            "name": "adamW",
            "adam_beta1": ADAM_BETAS[0],
            "adam_beta2": ADAM_BETAS[1],
            "adam_eps": ADAM_EPSILON,
            "torch_adam_is_fused": True,
        },
        "learning_rate_scheduler": {
            "learning_rate": LEARNING_RATE,
            "lr_warmup_style": "linear",
            "lr_decay_style": "cosine",
        },
    }


def _script(launch: TrainingLaunch) -> Sequence[str]:
    return OWN_SCRIPT if _why_not(launch) else ("run_train.py", "--config-file", "nanotron.yaml")


NANOTRON = Target(name="nanotron", saved_as="nanotron.yaml", why_not=_why_not, write=nanotron_yaml)
SCRIPT = Script(words=_script)

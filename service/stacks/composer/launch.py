"""llm-foundry's YAML, for `composer train.py`: Composer with DDP or FSDP.

Keys: llm-foundry 0.22, `utils/config_utils.py` (TrainConfig) and
`scripts/train/yamls`. The data loader's own keys are the reader's to fill.
"""

from __future__ import annotations

from typing import Any

from plimsoll.planners.stacks.profile import load_profile
from plimsoll.service.launch.training import (
    LEARNING_RATE,
    Placeholder,
    Target,
    TrainingLaunch,
    chosen_dtypes,
    given_reasons,
)
from plimsoll.service.launch.yaml_text import yaml_text

PRECISIONS = {"bf16-mixed": "amp_bf16", "fp16-mixed": "amp_fp16", "fp32": "fp32"}
OPTIMIZERS = {"adamw": "decoupled_adamw", "lion": "decoupled_lionw"}
# Composer 0.24 and later: `SHARDING_MAP` beside its FSDP code, and the degrees of FSDPConfig in `utils/parallelism.py`.
STRATEGIES = {2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}
HYBRID_STRATEGIES = {2: "_HYBRID_SHARD_ZERO2", 3: "HYBRID_SHARD"}
SIXTEEN_BITS = 2
DATA = Placeholder("$DATA_FOLDER")
WARM_UP = "100ba"
DURATION = "1ep"


def _why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    question, layout = launch.question, launch.layout
    return given_reasons(
        *chosen_dtypes(question, "Composer"),
        (question.precision not in PRECISIONS, f"Composer has no precision {question.precision}."),
        (question.optimizer not in OPTIMIZERS, f"llm-foundry has no optimizer {question.optimizer}."),
        (
            layout.zero_stage == 0 and layout.recompute == "full",
            "llm-foundry turns recompute on in its FSDP config only.",
        ),
    )


def composer_yaml(launch: TrainingLaunch) -> str:
    """Return the run's config; replicas, micro-batch and accumulation follow from the two batch sizes."""
    question, layout = launch.question, launch.layout
    steps = launch.plan.run.steps
    model: dict[str, Any] = {
        "name": "hf_causal_lm",
        "pretrained_model_name_or_path": launch.model_path,
        "pretrained": True,
    }
    if question.method == "lora":
        lora = question.lora
        model["peft_config"] = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": lora.rank,
            "target_modules": lora.ALL_LINEAR if lora.targets_all_linear else list(lora.target_modules),
            **({"modules_to_save": list(lora.modules_to_save)} if lora.modules_to_save else {}),
        }
    evaluation = question.evaluation
    return yaml_text(
        {
            "max_seq_len": question.sequence_length,
            "model": model,
            "tokenizer": {"name": launch.model_path, "kwargs": {"model_max_length": question.sequence_length}},
            "train_loader": {
                "name": "text",
                "dataset": {"local": DATA, "max_seq_len": question.sequence_length, "shuffle": True},
                "drop_last": True,
                "num_workers": 8,
            },
            "scheduler": {"name": "cosine_with_warmup", "t_warmup": WARM_UP, "alpha_f": 0.1},
            "optimizer": {"name": OPTIMIZERS[question.optimizer], "lr": LEARNING_RATE},
            "max_duration": DURATION if steps is None else f"{steps}ba",
            "global_train_batch_size": question.global_batch_size,
            "device_train_microbatch_size": layout.micro_batch_size,
            "device_eval_batch_size": layout.micro_batch_size if evaluation is None else evaluation.batch_size,
            "eval_interval": 0,
            "precision": PRECISIONS[question.precision],
            **_fsdp(launch),
        }
    )


def _fsdp(launch: TrainingLaunch) -> dict[str, Any]:
    """Return the FSDP config; without one Composer replicates the model."""
    layout = launch.layout
    if layout.zero_stage == 0:
        return {}
    reduces_in_sixteen = load_profile(layout.framework).weights.reduce_bytes == SIXTEEN_BITS
    return {
        "fsdp_config": {
            **_sharding(launch),
            "mixed_precision": "PURE" if reduces_in_sixteen else "DEFAULT",
            "activation_checkpointing": layout.recompute == "full",
            "activation_checkpointing_reentrant": False,
            "activation_cpu_offload": False,
            "limit_all_gathers": True,
        }
    }


def _sharding(launch: TrainingLaunch) -> dict[str, Any]:
    """Return what is divided and, of hybrid sharding, over how many ranks: without a number that is a node's."""
    layout = launch.layout
    if not launch.is_hybrid:
        return {"sharding_strategy": STRATEGIES[layout.zero_stage]}
    return {
        "sharding_strategy": HYBRID_STRATEGIES[layout.zero_stage],
        "data_parallel_shard_degree": layout.shard_group,
        "data_parallel_replicate_degree": layout.data_parallel // layout.shard_group,
    }


COMPOSER = Target(name="composer", saved_as="composer.yaml", why_not=_why_not, write=composer_yaml)

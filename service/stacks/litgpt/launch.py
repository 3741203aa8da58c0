"""LitGPT's YAML, for `litgpt pretrain` or `litgpt finetune_full`, whose strategies are fixed.

Keys: litgpt 0.5.13, `pretrain.py`, `finetune/full.py` and `args.py`. On several
GPUs `pretrain` shards within each node and recomputes nothing; `finetune_full`
shards over all of them and recomputes every layer.
"""

from __future__ import annotations

from typing import Any

from plimsoll.service.launch.training import (
    LEARNING_RATE,
    Target,
    TrainingLaunch,
    chosen_dtypes,
    given_reasons,
    uneven_nodes,
)
from plimsoll.service.launch.yaml_text import yaml_text

PRECISIONS = {"bf16-mixed": "bf16-mixed", "bf16": "bf16-true", "fp32": "32-true"}
CHECKPOINTS = "checkpoints"  # where `litgpt download` puts a model


def _why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    question = launch.question
    return given_reasons(
        *chosen_dtypes(question, "litgpt"),
        (launch.model_name is None, "litgpt knows its models by their names."),
        (question.method != "full", "litgpt's adapter recipes choose their matrices by options of their own."),
        (question.optimizer != "adamw", f"An optimizer {question.optimizer} is not written for litgpt."),
        (question.precision not in PRECISIONS, f"Precision {question.precision} is not written for litgpt."),
        (_recipe(launch) is None, "None of litgpt's recipes shards and recomputes as planned."),
        uneven_nodes(launch),
    )


def _recipe(launch: TrainingLaunch) -> str | None:
    """Return the recipe whose fixed strategy is the plan's."""
    layout = launch.layout
    if layout.gpus == 1:
        return "pretrain" if layout.recompute == "none" else None
    if layout.zero_stage != 3:
        return None
    if layout.recompute == "full" and not launch.is_hybrid:
        return "finetune_full"
    is_within_nodes = layout.shard_group == launch.processes_per_node
    return "pretrain" if layout.recompute == "none" and is_within_nodes else None


def litgpt_yaml(launch: TrainingLaunch) -> str:
    """Return the recipe's config; it derives the accumulation from the two batch sizes."""
    question, layout = launch.question, launch.layout
    train: dict[str, Any] = {
        "global_batch_size": question.global_batch_size,
        "micro_batch_size": layout.micro_batch_size,
        "max_seq_length": question.sequence_length,
    }
    recipe = _recipe(launch)
    if question.tokens is not None and recipe == "pretrain":
        train["max_tokens"] = round(question.tokens)
    elif launch.plan.run.steps is not None:
        train["max_steps"] = launch.plan.run.steps
    name = launch.model_path
    model = (
        {"model_name": name.rpartition("/")[2]} if recipe == "pretrain" else {"checkpoint_dir": f"{CHECKPOINTS}/{name}"}
    )
    return yaml_text(
        {
            **model,
            "precision": PRECISIONS[question.precision],
            "devices": launch.processes_per_node,
            "num_nodes": launch.nodes,
            "train": train,
            "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": LEARNING_RATE}},
        }
    )


LITGPT = Target(name="litgpt", saved_as="litgpt.yaml", why_not=_why_not, write=litgpt_yaml)

"""Accelerate's YAML, as `accelerate launch --config_file` reads it: DDP, FSDP2, DeepSpeed or Megatron-LM.

Field names: accelerate, `commands/config/config_args.py` (ClusterConfig) and the
options of `commands/launch.py` that its inner tables set. Which node a process is
on, and where the first one is, comes with the command: `--machine_rank` and
`--main_process_ip`.
"""

from __future__ import annotations

from typing import Any

from plimsoll.service.launch.training import (
    DEEPSPEED_FILE,
    Target,
    TrainingLaunch,
    chosen_dtypes,
    given_reasons,
    of_stacks,
    uneven_nodes,
)
from plimsoll.service.launch.yaml_text import yaml_text
from plimsoll.service.stacks.deepspeed.launch import DEEPSPEED
from plimsoll.service.stacks.megatron.launch import recompute_options

# utils/dataclasses.py, MODEL_CONFIGS_TO_MEGATRON_PARSERS: those of them that are planned.
MEGATRON_MODELS = frozenset({"gpt2", "llama"})
MIXED_PRECISION = {"bf16-mixed": "bf16", "fp16-mixed": "fp16", "fp32": "no", "tf32": "no", "bf16": "no"}


def _why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    question, layout = launch.question, launch.layout
    same = (
        uneven_nodes(launch),
        (question.precision not in MIXED_PRECISION, f"Precision {question.precision} is not written for accelerate."),
    )
    if layout.framework == "deepspeed":
        return (*given_reasons(*same), *DEEPSPEED.why_not(launch))
    if layout.framework == "megatron":
        return given_reasons(*same, *chosen_dtypes(question, "accelerate"), *_megatron_reasons(launch))
    return given_reasons(*same, *chosen_dtypes(question, "accelerate"))


def _megatron_reasons(launch: TrainingLaunch) -> tuple[tuple[bool, str], ...]:
    layout, model_type = launch.layout, launch.question.model.model_type
    return (
        (layout.virtual_pipeline > 1, "accelerate's launcher has no option for virtual pipeline stages."),
        (layout.recompute != "full", "accelerate's Megatron-LM plugin always recomputes whole layers."),
        (model_type not in MEGATRON_MODELS, f"accelerate describes no {model_type} model to Megatron-LM."),
    )


def accelerate_yaml(launch: TrainingLaunch) -> str:
    """Return the config of one cluster: how many processes on how many machines, and what divides their states."""
    layout = launch.layout
    writers = {"deepspeed": _deepspeed, "megatron": _megatron}
    parts = writers.get(layout.framework, _data_parallel)(launch)
    return yaml_text(
        {
            "compute_environment": "LOCAL_MACHINE",
            **parts,
            "num_machines": launch.nodes,
            "num_processes": layout.gpus,
            "machine_rank": 0,
            "main_training_function": "main",
            "same_network": True,
            "use_cpu": False,
        }
    )


def _data_parallel(launch: TrainingLaunch) -> dict[str, Any]:
    precision = {"mixed_precision": MIXED_PRECISION[launch.question.precision]}
    if launch.layout.zero_stage == 0:
        return {"distributed_type": "MULTI_GPU" if launch.layout.gpus > 1 else "NO", **precision}
    fsdp = {
        "fsdp_version": 2,
        # ZeRO 2: weights are gathered in the forward pass and kept until the backward.
        "fsdp_reshard_after_forward": launch.layout.zero_stage == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_activation_checkpointing": launch.layout.recompute == "full",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_offload_params": launch.layout.offload == "optimizer+parameters",
    }
    return {"distributed_type": "FSDP", **precision, "fsdp_config": fsdp, **_hybrid(launch)}


def _hybrid(launch: TrainingLaunch) -> dict[str, Any]:
    """Return the groups of hybrid sharding; without them all ranks are one group."""
    if not launch.is_hybrid:
        return {}
    layout = launch.layout
    return {
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": layout.data_parallel // layout.shard_group,
            "parallelism_config_dp_shard_size": layout.shard_group,
        }
    }


def _deepspeed(launch: TrainingLaunch) -> dict[str, Any]:
    """Return what stands beside DeepSpeed's own file, which decides all the rest."""
    config = {
        "deepspeed_config_file": DEEPSPEED_FILE,
        "deepspeed_multinode_launcher": "standard",
        # Each rank builds its own part only where the parameters are divided.
        "zero3_init_flag": launch.layout.zero_stage == 3,
    }
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": config}


def _megatron(launch: TrainingLaunch) -> dict[str, Any]:
    layout = launch.layout
    config: dict[str, Any] = {
        "megatron_lm_tp_degree": layout.tensor_parallel,
        "megatron_lm_pp_degree": layout.pipeline_parallel,
        "megatron_lm_num_micro_batches": layout.gradient_accumulation_steps,
        "megatron_lm_sequence_parallelism": layout.sequence_parallel,
        "megatron_lm_use_distributed_optimizer": layout.zero_stage > 0,
        "megatron_lm_context_parallel_size": layout.context_parallel,
        "megatron_lm_use_rotary_position_embeddings": launch.question.model.model_type != "gpt2",
        **{f"megatron_lm_{name}": value for name, value in recompute_options(layout).items()},
    }
    return {
        "distributed_type": "MEGATRON_LM",
        "mixed_precision": MIXED_PRECISION[launch.question.precision],
        "megatron_lm_config": config,
    }


ACCELERATE = Target(
    name="accelerate",
    is_for=of_stacks("accelerate", "ddp", "deepspeed", "megatron"),
    why_not=_why_not,
    write=accelerate_yaml,
)

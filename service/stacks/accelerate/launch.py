"""Accelerate's YAML, as `accelerate launch --config_file` reads it: replicated, or sharded by FSDP2.

Field names: accelerate, `commands/config/config_args.py` (ClusterConfig) and the
options of `commands/launch.py` that its inner tables set. Which node a process is
on, and where the first one is, comes with the command: `--machine_rank` and
`--main_process_ip`. Stacks that Accelerate launches otherwise say so in their own folders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from plimsoll.planners.families import traits
from plimsoll.service.launch.training import Target, TrainingLaunch, chosen_dtypes, given_reasons, uneven_nodes
from plimsoll.service.launch.yaml_text import yaml_text

MIXED_PRECISION = {"bf16-mixed": "bf16", "fp16-mixed": "fp16", "fp32": "no", "tf32": "no", "bf16": "no"}


def accelerate_target(
    parts: Callable[[TrainingLaunch], Mapping[str, Any]], why_not: Callable[[TrainingLaunch], tuple[str, ...]]
) -> Target:
    """Return the config of one cluster whose `parts` say what divides the states; `why_not` of those parts."""

    def write(launch: TrainingLaunch) -> str:
        return yaml_text(
            {
                "compute_environment": "LOCAL_MACHINE",
                **parts(launch),
                "num_machines": launch.nodes,
                "num_processes": launch.layout.gpus,
                "machine_rank": 0,
                "main_training_function": "main",
                "same_network": True,
                "use_cpu": False,
            }
        )

    return Target(
        name="accelerate",
        saved_as="accelerate.yaml",
        why_not=lambda launch: (*_launcher_reasons(launch), *why_not(launch)),
        write=write,
    )


def mixed_precision(launch: TrainingLaunch) -> dict[str, str]:
    """Return the field of the precision, which the launcher hands on."""
    return {"mixed_precision": MIXED_PRECISION[launch.question.precision]}


def dtype_reasons(launch: TrainingLaunch) -> tuple[str, ...]:
    """Return why the dtypes of gradients and optimizer states cannot be told."""
    return given_reasons(*chosen_dtypes(launch.question, "accelerate"))


def _launcher_reasons(launch: TrainingLaunch) -> tuple[str, ...]:
    precision = launch.question.precision
    return given_reasons(
        uneven_nodes(launch),
        (precision not in MIXED_PRECISION, f"Precision {precision} is not written for accelerate."),
    )


def _data_parallel(launch: TrainingLaunch) -> dict[str, Any]:
    precision = mixed_precision(launch)
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
    if layers := traits(launch.model_config["model_type"]).wrapped_layers:
        fsdp["fsdp_transformer_layer_cls_to_wrap"] = ",".join(layers)
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


ACCELERATE = accelerate_target(_data_parallel, dtype_reasons)

"""Accelerate's YAML, read as what the launch command would say in its place.

Source: accelerate/commands/config/config_args.py and utils/dataclasses.py (FSDP 2 reshards after forward or does not,
where FSDP 1 names a strategy).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.service.stacks.deepspeed.command import values_of_deepspeed
from plimsoll.service.workloads.commands.option_files import (
    OptionsFileNotRead,
    option_file,
    present,
    switched_on,
    text_of,
    whole_of,
)
from plimsoll.service.workloads.objects.object_parts import below
from plimsoll.service.workloads.objects.pods import Container


def values_of_accelerate(path: str, container: Container) -> dict[str, Any]:
    """Return what an Accelerate config says, with a DeepSpeed config that it names; raises OptionsFileNotRead."""
    config = option_file(path, container)
    kind = str(config.get("distributed_type", "NO"))
    values = present({"mixed_precision": text_of(config.get("mixed_precision"))})
    if kind == "DEEPSPEED":
        return {**values, **_of_accelerates_deepspeed(config, path, container)}
    if kind == "FSDP":
        return {**values, **_of_fsdp(config)}
    if kind in ("MULTI_GPU", "NO"):
        return values
    raise OptionsFileNotRead(f"{path[:80]} sets up {kind[:40]}, which is not read from it")


def _of_accelerates_deepspeed(config: Mapping[str, Any], path: str, container: Container) -> dict[str, Any]:
    part = config.get("deepspeed_config")
    file = below(part, ("deepspeed_config_file",))
    if isinstance(file, str):
        return values_of_deepspeed(file, container)
    return present(
        {
            "use_deepspeed": True,
            "zero_stage": whole_of(below(part, ("zero_stage",)), path),
            "accumulation": whole_of(below(part, ("gradient_accumulation_steps",)), path),
            "offload_optimizer": text_of(below(part, ("offload_optimizer_device",))),
            "offload_parameters": text_of(below(part, ("offload_param_device",))),
        }
    )


def _of_fsdp(config: Mapping[str, Any]) -> dict[str, Any]:
    part = config.get("fsdp_config")
    strategy = below(part, ("fsdp_sharding_strategy",))
    if strategy is None:
        reshards = below(part, ("fsdp_reshard_after_forward",))
        # FSDP 1 took a strategy's name under this key too.
        strategy = "SHARD_GRAD_OP" if reshards is False else reshards if isinstance(reshards, str) else "FULL_SHARD"
    return present(
        {
            "use_fsdp": True,
            "fsdp_strategy": str(strategy),
            "fsdp_offload": switched_on(below(part, ("fsdp_offload_params",))),
            "gradient_checkpointing": switched_on(below(part, ("fsdp_activation_checkpointing",))),
        }
    )

"""DeepSpeed's JSON and Accelerate's YAML, read as what the launch command would say in their place.

Sources: deepspeed/runtime/config.py and runtime/zero/config.py ("auto" is filled from the Trainer's arguments);
accelerate/commands/config/config_args.py and utils/dataclasses.py (FSDP 2 reshards after forward or does not, where
FSDP 1 names a strategy).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.service.workloads.commands.option_files import OptionsFileNotRead, option_file
from plimsoll.service.workloads.objects.object_parts import below
from plimsoll.service.workloads.objects.pods import Container

# Numbers that DeepSpeed's integration fills in from the command's own arguments.
AUTO = "auto"
NO_DEVICE = "none"
MOST = 2**31


def values_of_deepspeed(path: str, container: Container) -> dict[str, Any]:
    """Return what a DeepSpeed config says, by the fields of the Trainer's flags; raises OptionsFileNotRead."""
    return _of_deepspeed(option_file(path, container), path)


def values_of_accelerate(path: str, container: Container) -> dict[str, Any]:
    """Return what an Accelerate config says, with a DeepSpeed config that it names; raises OptionsFileNotRead."""
    config = option_file(path, container)
    kind = str(config.get("distributed_type", "NO"))
    values = _present({"mixed_precision": _text(config.get("mixed_precision"))})
    if kind == "DEEPSPEED":
        return {**values, **_of_accelerates_deepspeed(config, path, container)}
    if kind == "FSDP":
        return {**values, **_of_fsdp(config)}
    if kind in ("MULTI_GPU", "NO"):
        return values
    raise OptionsFileNotRead(f"{path[:80]} sets up {kind[:40]}, which is not read from it")


def _of_deepspeed(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    devices = {
        "offload_optimizer": below(config, ("zero_optimization", "offload_optimizer", "device")),
        "offload_parameters": below(config, ("zero_optimization", "offload_param", "device")),
    }
    return _present(
        {
            "use_deepspeed": True,
            "zero_stage": _whole(below(config, ("zero_optimization", "stage")), path) or 0,
            "micro_batch_size": _whole(config.get("train_micro_batch_size_per_gpu"), path),
            "accumulation": _whole(config.get("gradient_accumulation_steps"), path),
            "bf16": _switch(below(config, ("bf16", "enabled")) or below(config, ("bfloat16", "enabled"))),
            "fp16": _switch(below(config, ("fp16", "enabled"))),
            **{field: _text(device) for field, device in devices.items() if device != NO_DEVICE},
        }
    )


def _of_accelerates_deepspeed(config: Mapping[str, Any], path: str, container: Container) -> dict[str, Any]:
    part = config.get("deepspeed_config")
    file = below(part, ("deepspeed_config_file",))
    if isinstance(file, str):
        return values_of_deepspeed(file, container)
    return _present(
        {
            "use_deepspeed": True,
            "zero_stage": _whole(below(part, ("zero_stage",)), path),
            "accumulation": _whole(below(part, ("gradient_accumulation_steps",)), path),
            "offload_optimizer": _text(below(part, ("offload_optimizer_device",))),
            "offload_parameters": _text(below(part, ("offload_param_device",))),
        }
    )


def _of_fsdp(config: Mapping[str, Any]) -> dict[str, Any]:
    part = config.get("fsdp_config")
    strategy = below(part, ("fsdp_sharding_strategy",))
    if strategy is None:
        reshards = below(part, ("fsdp_reshard_after_forward",))
        # FSDP 1 took a strategy's name under this key too.
        strategy = "SHARD_GRAD_OP" if reshards is False else reshards if isinstance(reshards, str) else "FULL_SHARD"
    return _present(
        {
            "use_fsdp": True,
            "fsdp_strategy": str(strategy),
            "fsdp_offload": _switch(below(part, ("fsdp_offload_params",))),
            "gradient_checkpointing": _switch(below(part, ("fsdp_activation_checkpointing",))),
        }
    )


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in values.items() if value is not None}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _switch(value: Any) -> bool | None:
    """Return True where it is on; "auto" and what is off leave the command's own arguments to say."""
    return True if value is True else None


def _whole(value: Any, path: str) -> int | None:
    """Return a number, None where it is left to the command's arguments; raises OptionsFileNotRead."""
    if value is None or value == AUTO:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST:
        raise OptionsFileNotRead(f"{path[:80]} has {str(value)[:40]} where a whole number stands")
    return value

"""DeepSpeed's launcher, and its JSON read as what the launch command would say in its place.

Sources: deepspeed/launcher/runner.py; deepspeed/runtime/config.py and runtime/zero/config.py ("auto" is filled from the
Trainer's arguments).
"""

from __future__ import annotations

from typing import Any

from plimsoll.service.workloads.commands.flags import Flag
from plimsoll.service.workloads.commands.option_files import option_file, present, switched_on, text_of, whole_of
from plimsoll.service.workloads.objects.object_parts import below
from plimsoll.service.workloads.objects.pods import Container

LAUNCHER_FLAGS = (
    Flag(names=("num-gpus",), field="each", form="whole"),
    Flag(names=("num-nodes",), field="nodes", form="whole"),
)
NO_DEVICE = "none"


def values_of_deepspeed(path: str, container: Container) -> dict[str, Any]:
    """Return what a DeepSpeed config says, by the fields of the Trainer's flags; raises OptionsFileNotRead."""
    config = option_file(path, container)
    devices = {
        "offload_optimizer": below(config, ("zero_optimization", "offload_optimizer", "device")),
        "offload_parameters": below(config, ("zero_optimization", "offload_param", "device")),
    }
    return present(
        {
            "use_deepspeed": True,
            "zero_stage": whole_of(below(config, ("zero_optimization", "stage")), path) or 0,
            "secondary_group": whole_of(below(config, ("zero_optimization", "zero_hpz_partition_size")), path),
            "micro_batch_size": whole_of(config.get("train_micro_batch_size_per_gpu"), path),
            "accumulation": whole_of(config.get("gradient_accumulation_steps"), path),
            "bf16": switched_on(below(config, ("bf16", "enabled")) or below(config, ("bfloat16", "enabled"))),
            "fp16": switched_on(below(config, ("fp16", "enabled"))),
            **{field: text_of(device) for field, device in devices.items() if device != NO_DEVICE},
        }
    )

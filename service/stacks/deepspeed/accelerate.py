"""DeepSpeed as Accelerate and the Trainer are told of it: its own file decides all but what launches it."""

from __future__ import annotations

from typing import Any

from plimsoll.service.launch.training import TrainingLaunch
from plimsoll.service.stacks.accelerate.launch import accelerate_target
from plimsoll.service.stacks.accelerate.trainer import trainer_target
from plimsoll.service.stacks.deepspeed.launch import FILE, why_not


def _parts(launch: TrainingLaunch) -> dict[str, Any]:
    config = {
        "deepspeed_config_file": FILE,
        "deepspeed_multinode_launcher": "standard",
        # Each rank builds its own part only where the parameters are divided.
        "zero3_init_flag": launch.layout.zero_stage == 3,
    }
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": config}


ACCELERATE = accelerate_target(_parts, why_not)
TRANSFORMERS = trainer_target(
    engine=lambda _launch: {"deepspeed": FILE},
    why_not=why_not,
    recomputes=lambda launch: launch.layout.recompute == "full",
)

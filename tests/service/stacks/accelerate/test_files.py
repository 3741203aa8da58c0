from __future__ import annotations

import json
from typing import Any

import pytest

from plimsoll.service.stacks.commands import training_launch
from plimsoll.service.workloads.commands.launches import NotRead
from tests.service.admission.reviews import a_plain_container

TRAINER = "train.py --model_name_or_path m --max_seq_length 4096 --per_device_train_batch_size 2"
DEEPSPEED = {
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "none"}},
    "bf16": {"enabled": True},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": 4,
}


def launch(command: str, **files: str):
    named = {f"/c/{name}": text for name, text in files.items()}
    return training_launch(tuple(command.split()), 8, a_plain_container(files=named))


def test_deepspeeds_file_says_the_stage_and_the_command_what_is_left_to_it():
    read = launch(f"deepspeed {TRAINER} --deepspeed /c/ds", ds=json.dumps(DEEPSPEED)).request
    assert (read["framework"], read["layout"]["zero_stage"], read["layout"]["offload"]) == ("deepspeed", 3, "optimizer")
    assert "offload_target" not in read["layout"]
    assert read["layout"]["secondary_shard_group"] == 1


def test_deepspeeds_file_says_a_second_copy_of_the_weights_and_what_lies_on_drives():
    drives = {"device": "nvme", "nvme_path": "/nvme"}
    zero = {"stage": 3, "zero_hpz_partition_size": 8, "offload_optimizer": drives}
    command = f"deepspeed {TRAINER} --deepspeed /c/ds"
    read = launch(command, ds=json.dumps({**DEEPSPEED, "zero_optimization": zero})).request
    layout = read["layout"]
    assert (layout["secondary_shard_group"], layout["offload"], layout["offload_target"]) == (8, "optimizer", "nvme")
    apart = {**zero, "offload_param": {"device": "cpu"}}
    found = launch(command, ds=json.dumps({**DEEPSPEED, "zero_optimization": apart}))
    assert "different devices" in found.reason
    # 2 sequences x 4 accumulated x 8 GPUs.
    assert (read["training"]["precision"], read["training"]["global_batch_size"]) == ("bf16-mixed", 64)


@pytest.mark.parametrize(
    ("fsdp", "zero_stage"),
    [
        ({"fsdp_version": 2, "fsdp_reshard_after_forward": True}, 3),
        ({"fsdp_version": 2, "fsdp_reshard_after_forward": False}, 2),
        ({"fsdp_sharding_strategy": "SHARD_GRAD_OP"}, 2),
        ({"fsdp_sharding_strategy": 1}, 3),
        ({"fsdp_reshard_after_forward": "NO_SHARD"}, 0),
        ({}, 3),
    ],
)
def test_accelerates_file_shards_by_fsdp(fsdp: dict[str, Any], zero_stage: int):
    config = json.dumps({"distributed_type": "FSDP", "mixed_precision": "bf16", "fsdp_config": fsdp})
    read = launch(f"accelerate launch --config_file /c/a {TRAINER}", a=config).request
    assert (read["layout"]["zero_stage"], read["training"]["precision"]) == (zero_stage, "bf16-mixed")


def test_accelerates_file_offloads_and_recomputes():
    fsdp = {"fsdp_offload_params": True, "fsdp_activation_checkpointing": True}
    config = json.dumps({"distributed_type": "FSDP", "fsdp_config": fsdp})
    read = launch(f"accelerate launch --config_file /c/a {TRAINER}", a=config).request
    assert (read["layout"]["offload"], read["training"]["recompute"]) == ("optimizer+parameters", "full")


@pytest.mark.parametrize(
    "part",
    [{"zero_stage": 3, "offload_optimizer_device": "cpu"}, {"deepspeed_config_file": "/c/ds"}],
)
def test_accelerates_file_sets_up_deepspeed_itself_or_by_another_file(part: dict[str, Any]):
    config = json.dumps({"distributed_type": "DEEPSPEED", "deepspeed_config": part})
    read = launch(f"accelerate launch --config_file /c/a {TRAINER}", a=config, ds=json.dumps(DEEPSPEED)).request
    assert (read["layout"]["zero_stage"], read["layout"]["offload"]) == (3, "optimizer")


def test_accelerates_file_without_sharding_copies_the_model():
    config = json.dumps({"distributed_type": "MULTI_GPU", "mixed_precision": "fp16"})
    read = launch(f"accelerate launch --config_file /c/a {TRAINER}", a=config).request
    assert (read["layout"]["zero_stage"], read["training"]["precision"]) == (0, "fp16-mixed")


@pytest.mark.parametrize(
    ("flag", "config", "told"),
    [
        ("--deepspeed", {"zero_optimization": {"stage": "three"}}, "has three where a whole number stands"),
        ("--deepspeed", {"train_micro_batch_size_per_gpu": -1}, "has -1 where a whole number stands"),
        ("--deepspeed", {"gradient_accumulation_steps": True}, "has True where a whole number stands"),
        ("--config_file", {"distributed_type": "TPU"}, "sets up TPU"),
    ],
)
def test_a_file_that_says_something_else_is_not_guessed(flag: str, config: dict[str, Any], told: str):
    read = launch(f"accelerate launch {flag} /c/x {TRAINER}", x=json.dumps(config))
    assert isinstance(read, NotRead)
    assert told in read.reason


@pytest.mark.parametrize("part", [5, [], "x", None])
def test_parts_of_any_form_break_nothing(part: Any):
    for config in ({"zero_optimization": part, "bf16": part}, {"distributed_type": "FSDP", "fsdp_config": part}):
        text = json.dumps(config)
        assert launch(f"accelerate launch --deepspeed /c/x {TRAINER}", x=text) is not None
        assert launch(f"accelerate launch --config_file /c/x {TRAINER}", x=text) is not None

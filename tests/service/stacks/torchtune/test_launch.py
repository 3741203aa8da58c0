"""torchtune's command, held against a golden file: torchtune needs a torchao that today's torch has not."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from plimsoll.planners.questions import Lora, Recompute
from plimsoll.service.launch.training import TrainingLaunch
from tests.service.stacks.launches import golden, launch, why_missing, written

LLAMA = "meta-llama/Llama-3.1-8B"
EVERY_SECOND = Recompute(mode="full", every=2)
ATTENTION = Lora(rank=8, target_modules=("q_proj", "o_proj"))


def plan(**changes: Any) -> TrainingLaunch:
    asked = {"precision": "bf16", **changes.pop("asked", {})}
    facts: dict[str, Any] = {"model_name": LLAMA, "data_parallel": 8, "zero_stage": 3, **changes}
    return launch("torchtune", **facts, asked=asked)


def overrides(given: TrainingLaunch) -> dict[str, str]:
    words = shlex.split(written("torchtune", given))
    return dict(word.split("=", 1) for word in words[words.index("--config") + 2 :])


def test_the_command_is_the_one_that_was_read_beside_the_recipe():
    given = plan(
        data_parallel=8, tensor_parallel=2, recompute="full", micro_batch_size=2, asked={"recompute": EVERY_SECOND}
    )
    assert written("torchtune", given) == golden("torchtune.txt")


def test_the_batch_multiplies_out():
    found = overrides(plan(micro_batch_size=2))
    assert int(found["batch_size"]) * int(found["gradient_accumulation_steps"]) * 8 == 64


def test_adapters_go_by_torchtunes_names():
    given = plan(asked={"method": "lora", "lora": ATTENTION})
    found = overrides(given)
    assert " lora_finetune_distributed --config llama3_1/8B_lora " in written("torchtune", given)
    assert (found["model.lora_rank"], found["model.lora_attn_modules"]) == ("8", "[q_proj,output_proj]")
    assert found["model.apply_lora_to_mlp"] == "False"
    assert overrides(plan(asked={"method": "lora"}))["model.apply_lora_to_mlp"] == "True"


def test_states_go_to_the_host_by_the_recipes_own_switch():
    assert overrides(plan(offload="optimizer+parameters"))["fsdp_cpu_offload"] == "True"
    assert "fsdp_cpu_offload" not in overrides(plan())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_name": None}, "no config of this model"),
        ({"asked": {"method": "qlora"}}, "four-bit recipe"),
        ({"asked": {"precision": "bf16-mixed"}}, "no precision bf16-mixed"),
        ({"asked": {"optimizer": "sgd"}}, "written for AdamW, not for sgd"),
        ({"zero_stage": 0}, "always shard"),
        ({"framework_version": "0.4"}, "for torchtune 0.6, and the plan for 0.4"),
        ({"data_parallel": 16, "shard_group": 8}, "over all replicas"),
        ({"context_parallel": 2}, "context parallelism"),
        ({"tensor_parallel": 2, "model_name": "Qwen/Qwen2.5-7B"}, "no plan of tensor parallelism"),
        ({"tensor_parallel": 2, "asked": {"method": "lora"}}, "tensor parallelism"),
        ({"asked": {"method": "lora", "lora": Lora(target_modules=("q_proj", "up_proj"))}}, "these matrices alone"),
        ({"asked": {"method": "lora", "lora": Lora(target_modules=("up_proj",))}}, "these matrices alone"),
        ({"recompute": "full", "asked": {"method": "lora", "recompute": EVERY_SECOND}}, "all layers or none"),
        ({"activation_offload": True}, "only where all layers are recomputed"),
        ({"activation_offload": True, "recompute": "full", "asked": {"recompute": EVERY_SECOND}}, "only where all"),
        ({"data_parallel": 12}, "not a whole number of nodes"),
        ({"asked": {"gradient_dtype": "bf16"}}, "gradient_dtype bf16"),
    ],
)
def test_what_torchtune_cannot_be_told_is_not_written(changes: dict[str, Any], reason: str):
    assert reason in why_missing("torchtune", plan(**changes))

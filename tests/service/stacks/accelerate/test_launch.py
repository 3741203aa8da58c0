"""Accelerate's YAML: read by `accelerate launch` itself, up to the environment it starts processes with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plimsoll.planners.catalogue.catalogue import catalogue
from plimsoll.service.artifacts.training import training_artifacts
from plimsoll.service.launch.training import TrainingLaunch
from tests.service.stacks.launches import launch


def written(given: TrainingLaunch, folder: Path) -> Path:
    content = training_artifacts(given).files["accelerate"]
    assert isinstance(content, str)
    file = folder / "accelerate.yaml"
    file.write_text(content, encoding="utf-8")
    return file


def launched(given: TrainingLaunch, folder: Path) -> tuple[Any, dict[str, str]]:
    """Return what `accelerate launch` makes of the file: its arguments, and its processes' environment."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    arguments = ["--config_file", str(written(given, folder)), "--main_process_ip", "127.0.0.1", "train.py"]
    found, _, _ = _validate_launch_command(launch_command_parser().parse_args(["--main_process_port", "0", *arguments]))
    return found, prepare_multi_gpu_env(found)


def test_accelerate_knows_every_key(tmp_path: Path):
    from accelerate.commands.config.config_args import load_config_from_file

    found = load_config_from_file(str(written(launch("accelerate", data_parallel=16, zero_stage=3), tmp_path)))
    assert (found.num_machines, found.num_processes) == (2, 16)


@pytest.mark.parametrize(("stage", "reshards"), [(2, False), (3, True)])
def test_fsdp2_lets_go_of_weights_after_each_layer_in_stage_3(
    stage: int, reshards: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from accelerate import FullyShardedDataParallelPlugin

    found, environment = launched(launch("accelerate", data_parallel=16, zero_stage=stage), tmp_path)
    assert (found.use_fsdp, found.nproc_per_node, found.nnodes) == (True, "8", "2")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, reshards)
    assert plugin.state_dict_type.name == "SHARDED_STATE_DICT"
    assert plugin.activation_checkpointing is False


@pytest.mark.parametrize(
    ("model", "named"), [("Qwen/Qwen3.5-9B", "Qwen3_5DecoderLayer"), ("google/gemma-3-27b-it", "Gemma3DecoderLayer")]
)
def test_layers_are_named_where_transformers_names_some_that_are_not_there(model: str, named: str, tmp_path: Path):
    config = catalogue().model(model).config
    _, environment = launched(launch("accelerate", config=config, data_parallel=8, zero_stage=3), tmp_path)
    assert environment["FSDP_TRANSFORMER_CLS_TO_WRAP"] == named
    _, environment = launched(launch("accelerate", data_parallel=8, zero_stage=3), tmp_path)
    assert "FSDP_TRANSFORMER_CLS_TO_WRAP" not in environment


def test_whole_layers_are_recomputed_by_fsdps_own_option(tmp_path: Path):
    _, environment = launched(launch("accelerate", data_parallel=8, zero_stage=3, recompute="full"), tmp_path)
    assert environment["FSDP_ACTIVATION_CHECKPOINTING"] == "true"


def test_states_on_the_host_are_fsdps_own_option(tmp_path: Path):
    given = launch("accelerate", data_parallel=8, zero_stage=3, offload="optimizer+parameters")
    _, environment = launched(given, tmp_path)
    assert environment["FSDP_OFFLOAD_PARAMS"] == "true"


def test_hybrid_sharding_has_groups(tmp_path: Path):
    _, environment = launched(launch("accelerate", data_parallel=16, zero_stage=3, shard_group=8), tmp_path)
    assert environment["PARALLELISM_CONFIG_DP_REPLICATE_SIZE"] == "2"
    assert environment["PARALLELISM_CONFIG_DP_SHARD_SIZE"] == "8"


@pytest.mark.parametrize(
    ("precision", "expected"),
    [("bf16-mixed", "bf16"), ("fp16-mixed", "fp16"), ("fp32", "no"), ("tf32", "no"), ("bf16", "no")],
)
def test_mixed_precision_is_the_plans(precision: str, expected: str, tmp_path: Path):
    _, environment = launched(launch("accelerate", data_parallel=8, asked={"precision": precision}), tmp_path)
    assert environment["ACCELERATE_MIXED_PRECISION"] == expected


def test_replicas_without_sharding_are_ddp(tmp_path: Path):
    found, _ = launched(launch("ddp", data_parallel=8), tmp_path)
    assert (found.multi_gpu, found.use_fsdp, found.use_deepspeed) == (True, False, False)


def test_one_gpu_is_no_distributed_run(tmp_path: Path):
    from accelerate.commands.config.config_args import load_config_from_file

    found = load_config_from_file(str(written(launch("accelerate"), tmp_path)))
    assert (found.distributed_type.value, found.num_processes) == ("NO", 1)


@pytest.mark.parametrize(("stage", "splits"), [(2, False), (3, True)])
def test_deepspeed_is_left_to_its_own_file(stage: int, splits: bool, tmp_path: Path):
    found, _ = launched(launch("deepspeed", data_parallel=8, zero_stage=stage), tmp_path)
    assert (found.use_deepspeed, found.deepspeed_config_file) == (True, "deepspeed.json")
    assert found.zero3_init_flag is splits


def test_megatron_is_handed_the_degrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from accelerate.utils import MegatronLMPlugin

    degrees = {"data_parallel": 2, "tensor_parallel": 4, "pipeline_parallel": 2, "context_parallel": 2}
    given = launch("megatron", **degrees, zero_stage=1, sequence_parallel=True, recompute="full", recompute_layers=3)
    _, environment = launched(given, tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    plugin = MegatronLMPlugin()
    assert (plugin.tp_degree, plugin.pp_degree, plugin.context_parallel_size) == (4, 2, 2)
    assert (plugin.sequence_parallelism, plugin.use_distributed_optimizer) == (True, True)
    recomputed = (plugin.recompute_granularity, plugin.recompute_method, plugin.recompute_num_layers)
    assert recomputed == ("full", "block", 3)
    # 2 replicas x 1 sequence x 32 micro-batches = 64.
    plugin.set_training_args(micro_batch_size=1, dp_degree=2)
    assert plugin.global_batch_size == 64


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (launch("accelerate", data_parallel=12), "not a whole number of nodes"),
        (launch("accelerate", asked={"precision": "fp8-mixed"}), "fp8-mixed is not written"),
        (launch("accelerate", asked={"gradient_dtype": "fp32"}), "no option for gradient_dtype fp32"),
        (launch("accelerate", asked={"optimizer_state_dtype": "bf16"}), "no option for optimizer_state_dtype bf16"),
        (launch("megatron", recompute="selective"), "always recomputes whole layers"),
        (launch("megatron", recompute="full", asked={"multi_token_prediction": 1}), "multi-token prediction"),
        (launch("megatron", recompute="full", pipeline_parallel=2, virtual_pipeline=2), "virtual pipeline"),
        (launch("deepspeed", data_parallel=8, expert_parallel=2), "MoE layers"),
    ],
)
def test_what_accelerate_cannot_be_told_is_not_written(given: TrainingLaunch, reason: str):
    found = training_artifacts(given)
    assert "accelerate" not in found.files
    assert reason in " ".join(found.missing["accelerate"])


def test_accelerate_describes_few_models_to_megatron():
    from accelerate.utils.dataclasses import MODEL_CONFIGS_TO_MEGATRON_PARSERS

    from plimsoll.service.stacks.megatron.accelerate import MODELS
    from tests.service.stacks.launches import QWEN_3_30B_A3B

    assert set(MODEL_CONFIGS_TO_MEGATRON_PARSERS) >= MODELS
    found = training_artifacts(launch("megatron", config=QWEN_3_30B_A3B, recompute="full"))
    assert found.missing["accelerate"] == ("accelerate describes no qwen3_moe model to Megatron-LM.",)

"""DeepSpeed's JSON: accepted by DeepSpeed's own config classes."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.stacks.profile import load_profile
from plimsoll.service.artifacts.training import training_artifacts
from plimsoll.service.launch.training import TrainingLaunch
from tests.service.stacks.launches import launch


def written(given: TrainingLaunch) -> dict[str, Any]:
    content = training_artifacts(given).files["deepspeed"]
    assert isinstance(content, dict)
    return content


class Ranks:
    """The process group of a run: DeepSpeed asks it how many ranks there are."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size

    def get_rank(self) -> int:
        return 0

    def get_world_size(self) -> int:
        return self._world_size


def parsed(given: TrainingLaunch, monkeypatch: pytest.MonkeyPatch) -> Any:
    from deepspeed.runtime import config

    monkeypatch.setattr(config, "dist", Ranks(given.layout.gpus))
    return config.DeepSpeedConfig(written(given))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_accepts_every_stage_and_its_batch_multiplies_out(stage: int, monkeypatch: pytest.MonkeyPatch):
    # 8 ranks x 2 sequences x 4 micro-batches = 64; DeepSpeed asserts as much itself.
    found = parsed(launch("deepspeed", data_parallel=8, zero_stage=stage, micro_batch_size=2), monkeypatch)
    assert found.zero_optimization_stage == stage
    batches = (found.world_size, found.train_micro_batch_size_per_gpu, found.gradient_accumulation_steps)
    assert (batches, found.train_batch_size) == ((8, 2, 4), 64)
    assert found.bfloat16_config.enabled
    assert not found.float16_config.enabled
    assert found.zero_config.overlap_comm is (stage == 3)


def test_buckets_are_those_that_memory_is_counted_with(monkeypatch: pytest.MonkeyPatch):
    counted = load_profile("deepspeed").zero
    assert counted is not None
    found = parsed(launch("deepspeed", data_parallel=8, zero_stage=3), monkeypatch).zero_config
    assert (found.reduce_bucket_size, found.prefetch_bucket_size) == (
        counted.reduce_bucket_elements,
        counted.prefetch_bucket_elements,
    )


def test_states_on_drives_have_the_buffers_that_host_memory_is_counted_with(monkeypatch: pytest.MonkeyPatch):
    # planners/memory/nvme.py: four buffers of a sub-group, five of 1e8 elements, 1e9 elements kept.
    offload = {"offload": "optimizer+parameters", "offload_target": "nvme"}
    found = parsed(launch("deepspeed", data_parallel=8, zero_stage=3, **offload), monkeypatch).zero_config
    assert found.offload_optimizer.device == found.offload_param.device == "nvme"
    assert found.offload_optimizer.buffer_count == 4
    assert (found.offload_param.buffer_count, found.offload_param.buffer_size) == (5, 10**8)
    assert (found.offload_param.max_in_cpu, found.sub_group_size) == (10**9, 10**9)


def test_a_second_copy_of_the_weights_is_told_where_there_is_one(monkeypatch: pytest.MonkeyPatch):
    twice = parsed(launch("deepspeed", data_parallel=8, zero_stage=3, secondary_shard_group=4), monkeypatch)
    assert twice.zero_config.zero_hpz_partition_size == 4
    once = parsed(launch("deepspeed", data_parallel=8, zero_stage=3), monkeypatch)
    assert once.zero_config.zero_hpz_partition_size == 1


def test_only_what_is_offloaded_leaves_the_gpu(monkeypatch: pytest.MonkeyPatch):
    found = parsed(launch("deepspeed", data_parallel=8, zero_stage=2, offload="optimizer"), monkeypatch).zero_config
    assert found.offload_optimizer.device == "cpu"
    assert found.offload_param is None
    assert "buffer_count" not in written(launch("deepspeed", offload="optimizer"))["zero_optimization"]


def test_muon_at_stage_3_reduces_without_a_scatter(monkeypatch: pytest.MonkeyPatch):
    # stage3.py: "Muon and reduce scatter cannot be used together".
    asked = {"optimizer": "muon"}
    assert not parsed(
        launch("deepspeed", data_parallel=8, zero_stage=3, asked=asked), monkeypatch
    ).zero_config.reduce_scatter
    assert parsed(
        launch("deepspeed", data_parallel=8, zero_stage=2, asked=asked), monkeypatch
    ).zero_config.reduce_scatter


def test_half_precision_scales_its_loss(monkeypatch: pytest.MonkeyPatch):
    found = parsed(launch("deepspeed", data_parallel=8, asked={"precision": "fp16-mixed"}), monkeypatch)
    assert found.float16_config.enabled
    assert (found.float16_config.loss_scale, found.float16_config.initial_scale_power) == (0, 16)
    assert not found.bfloat16_config.enabled


def test_full_precision_is_neither_of_both(monkeypatch: pytest.MonkeyPatch):
    found = parsed(launch("deepspeed", data_parallel=8, asked={"precision": "fp32"}), monkeypatch)
    assert not found.bfloat16_config.enabled
    assert not found.float16_config.enabled


def test_gradients_are_accumulated_in_the_dtype_asked_for(monkeypatch: pytest.MonkeyPatch):
    found = parsed(launch("deepspeed", data_parallel=8, zero_stage=2, asked={"gradient_dtype": "fp32"}), monkeypatch)
    assert found.grad_accum_dtype == "fp32"


def test_tuning_is_off(monkeypatch: pytest.MonkeyPatch):
    assert not parsed(launch("deepspeed", data_parallel=8), monkeypatch).autotuning_config.enabled


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "muon", "sgd", "sgd-momentum"])
def test_optimizers_go_by_names_that_deepspeed_or_torch_knows(optimizer: str, monkeypatch: pytest.MonkeyPatch):
    import torch
    from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS

    found = parsed(launch("deepspeed", data_parallel=8, asked={"optimizer": optimizer}), monkeypatch)
    assert found.optimizer_name in DEEPSPEED_OPTIMIZERS or hasattr(torch.optim, found.optimizer_name)


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "sgd", "sgd-momentum"])
def test_an_optimizer_that_deepspeed_has_not_tested_under_zero_is_allowed(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
):
    from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

    found = parsed(launch("deepspeed", data_parallel=8, asked={"optimizer": optimizer}), monkeypatch)
    tested = {kind.__name__.removeprefix("Fused") for kind in ZERO_SUPPORTED_OPTIMIZERS}
    assert found.zero_allow_untested_optimizer is not (found.optimizer_name.removesuffix("w").title() in tested)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (launch("deepspeed", data_parallel=8, expert_parallel=2), "MoE layers"),
        (launch("deepspeed", offload="optimizer", asked={"optimizer": "muon"}), "no optimizer muon that runs on"),
        (launch("deepspeed", asked={"optimizer_state_dtype": "bf16"}), "optimizer states in fp32, not in bf16"),
        (launch("deepspeed", asked={"gradient_dtype": "int8"}), "cannot be int8"),
        (launch("deepspeed", zero_stage=0, asked={"gradient_dtype": "fp32"}), "the model's own format, not in fp32"),
        (launch("deepspeed", recompute="full", recompute_layers=4), "Recompute of 4 layers alone"),
    ],
)
def test_what_the_config_cannot_say_is_not_written(given: TrainingLaunch, reason: str):
    found = training_artifacts(given)
    assert "deepspeed" not in found.files
    assert reason in " ".join(found.missing["deepspeed"])

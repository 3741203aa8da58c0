"""Megatron-LM through accelerate's plugin, which knows part of its arguments."""

import pytest

from plimsoll.service.artifacts.training import training_artifacts
from tests.service.stacks.launches import launch


def artifacts(**changes):
    return training_artifacts(launch("megatron", data_parallel=8, zero_stage=1, recompute="full", **changes))


def test_adam_on_the_device_is_the_plugin_s():
    assert "megatron_lm_use_distributed_optimizer: true" in artifacts().files["accelerate"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"offload": "optimizer"}, "no option for states on the host"),
        ({"shard_group": 4}, "no option for copies of the distributed optimizer"),
        ({"asked": {"optimizer": "muon"}}, "knows Adam and SGD alone"),
    ],
)
def test_what_it_has_no_option_for_is_told(changes, reason):
    made = artifacts(**changes)
    assert "accelerate" not in made.files
    assert reason in " ".join(made.missing["accelerate"])

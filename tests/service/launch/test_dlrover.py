"""DLRover's ElasticJob, held against a golden file; its command is read by DLRover's own launcher."""

from __future__ import annotations

import dataclasses
import importlib.util
import shlex
import warnings
from typing import Any

import pytest
import yaml

from plimsoll.service.launch.training import TrainingLaunch
from tests.service.stacks.launches import golden, launch, why_missing, written


def given(**changes: Any) -> TrainingLaunch:
    """Return a launch whose plan needs 10 GiB of host memory for each GPU."""
    made = launch("fsdp2", data_parallel=16, zero_stage=3, **changes)
    memory = dataclasses.replace(made.plan.memory, host_bytes=10 * 2**30)
    return dataclasses.replace(made, plan=dataclasses.replace(made.plan, memory=memory))


def worker(made: TrainingLaunch) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(written("dlrover", made))["spec"]["replicaSpecs"]["worker"]
    return found


def command(made: TrainingLaunch) -> list[str]:
    (container,) = worker(made)["template"]["spec"]["containers"]
    assert container["command"][:2] == ["/bin/bash", "-c"]
    return shlex.split(container["command"][2])


def test_the_job_is_the_one_that_was_read_beside_dlrovers_examples():
    assert written("dlrover", given(elastic_gpus=(8, 16, 24))) == golden("dlrover.yaml")


@pytest.mark.skipif(importlib.util.find_spec("dlrover") is None, reason="`make` installs dlrover, without its master's")
def test_dlrovers_launcher_accepts_the_command():
    with warnings.catch_warnings():
        # Its client warns where Ray is not installed.
        warnings.simplefilter("ignore")
        from dlrover.trainer.torch.elastic_run import parse_args
    program, *arguments = command(given(elastic_gpus=(8, 16, 24)))
    found = parse_args(arguments)
    assert program == "dlrover-run"
    assert (found.nnodes, found.nproc_per_node, found.max_restarts) == ("1:3", "8", 3)
    assert (found.network_check, found.exclude_straggler, found.save_at_breakpoint) == (True, True, True)


def test_a_node_has_its_gpus_and_their_host_memory():
    # 8 GPUs of 10 GiB each are 80 x 1,024 MiB.
    made = worker(given())
    (container,) = made["template"]["spec"]["containers"]
    assert made["replicas"] == 2
    assert container["resources"]["requests"] == {"memory": "81920Mi", "nvidia.com/gpu": 8}
    # The loader and what lies in shared memory come on top of what the plan counts.
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}


def test_a_plan_with_nothing_on_the_host_asks_for_no_memory():
    made = given()
    plan = dataclasses.replace(made.plan, memory=dataclasses.replace(made.plan.memory, host_bytes=0))
    (container,) = worker(dataclasses.replace(made, plan=plan))["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"nvidia.com/gpu": 8}


def test_only_elastic_jobs_are_scaled():
    assert worker(given(elastic_gpus=(8, 16)))["autoScale"] is True
    assert worker(given())["autoScale"] is False


def test_uneven_nodes_have_no_job():
    assert "not a whole number of nodes" in why_missing("dlrover", launch("fsdp2", data_parallel=12))

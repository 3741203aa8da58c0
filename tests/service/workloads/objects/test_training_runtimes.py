from __future__ import annotations

from typing import Any

import pytest

from plimsoll.service.workloads.objects.object_parts import ObjectNotRead, UnreadableObject
from plimsoll.service.workloads.objects.pods import PodGroup
from plimsoll.service.workloads.objects.training_runtimes import GivenRuntimes, NoRuntimes, with_runtime
from plimsoll.service.workloads.objects.workloads import pod_group


def a_runtime(**container: Any) -> dict[str, Any]:
    node = {
        "name": "node", "image": "theirs", "resources": {"limits": {"nvidia.com/gpu": 4}},
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], **container,
    }  # fmt: skip
    pod = {"nodeSelector": {"gpu": "x"}, "containers": [{"name": "sidecar"}, node]}
    label = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    jobs = [
        {"name": "dataset", "template": {"spec": {"template": {"spec": {"containers": []}}}}},
        {"name": "node", "template": {"metadata": label, "spec": {"template": {"spec": pod}}}},
    ]
    return {"spec": {"mlPolicy": {"numNodes": 3, "torch": {}}, "template": {"spec": {"replicatedJobs": jobs}}}}


def a_job(**trainer: Any) -> dict[str, Any]:
    return {"spec": {"runtimeRef": {"name": "torch"}, "trainer": trainer}}


def given(runtime: dict[str, Any], kind: str = "ClusterTrainingRuntime", namespace: str = "") -> GivenRuntimes:
    return GivenRuntimes({(kind, namespace, "torch"): runtime})


async def group(job: dict[str, Any], runtime: dict[str, Any]) -> PodGroup:
    found = pod_group("trainer.kubeflow.org", "TrainJob", await with_runtime(job, "team", given(runtime)))
    assert found is not None
    return found


async def test_what_a_job_leaves_away_is_its_runtimes():
    found = await group(a_job(command=["torchrun"]), a_runtime())
    (container,) = found.containers
    assert (found.pods, container.image, container.command) == (3, "theirs", ("torchrun",))
    assert container.resources == {"limits": {"nvidia.com/gpu": 4}}
    assert found.members[0].spec["nodeSelector"] == {"gpu": "x"}


async def test_what_a_job_says_is_in_the_place_of_its_runtimes():
    job = a_job(numNodes=1, image="ours", env=[{"name": "B", "value": "3"}])
    job["spec"]["podTemplateOverrides"] = [{"spec": {"nodeSelector": {"gpu": "y"}}}]
    found = await group(job, a_runtime(command=["train"]))
    (container,) = found.containers
    assert (found.pods, container.image, container.command) == (1, "ours", ("train",))
    assert (container.env, found.members[0].spec["nodeSelector"]) == (
        {"A": "1", "B": "3", "PET_NNODES": "1", "PET_NPROC_PER_NODE": "auto"}, {"gpu": "y"},
    )  # fmt: skip


async def test_a_runtime_of_the_namespace_is_looked_for_there():
    job = a_job()
    job["spec"]["runtimeRef"]["kind"] = "TrainingRuntime"
    filled = await with_runtime(job, "team", given(a_runtime(), "TrainingRuntime", "team"))
    assert filled["spec"]["trainer"]["numNodes"] == 3


async def test_a_runtime_that_starts_by_mpi_fills_nothing():
    runtime = a_runtime()
    runtime["spec"]["mlPolicy"]["mpi"] = {}
    assert await with_runtime(a_job(), "team", given(runtime)) == a_job()


@pytest.mark.parametrize(
    ("runtimes", "told"), [(NoRuntimes(), "no Kubernetes API is configured"), (GivenRuntimes({}), "not in the file")]
)
async def test_a_runtime_that_is_not_at_hand_is_told_where_the_job_needs_it(runtimes: Any, told: str):
    enough = a_job(numNodes=1, resourcesPerNode={"limits": {}})
    assert await with_runtime(enough, "team", runtimes) == enough
    with pytest.raises(UnreadableObject, match=f"numNodes and resourcesPerNode .* the runtime torch.*{told}"):
        await with_runtime(a_job(), "team", runtimes)


async def test_no_runtime_is_found_under_another_kind():
    with pytest.raises(ObjectNotRead):
        await given(a_runtime()).get("TrainingRuntime", "team", "torch")

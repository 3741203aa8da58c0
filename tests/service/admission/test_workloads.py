from __future__ import annotations

import pytest

from service.admission.workloads import UnreadableObject, pod_groups
from tests.service.admission.reviews import GROUPS, a_container, a_template, an_object


@pytest.mark.parametrize(
    ("kind", "pods"),
    [
        ("Pod", 1), ("Deployment", 1), ("StatefulSet", 1), ("Job", 4), ("JobSet", 4), ("PyTorchJob", 4),
        ("LeaderWorkerSet", 4), ("InferenceService", 1),
    ],
)  # fmt: skip
def test_the_pods_that_work_together_are_counted(kind: str, pods: int):
    (group,) = pod_groups(GROUPS[kind], kind, an_object(kind, a_container("--model", "m"), pods=pods))
    assert (group.pods, group.containers[0].args) == (pods, ("--model", "m"))


def test_a_train_job_names_its_container_in_the_trainer():
    trainer = {
        "numNodes": 2, "command": ["torchrun"], "args": ["x.py"], "image": "i", "env": [{"name": "A", "value": "1"}],
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}},
    }  # fmt: skip
    (group,) = pod_groups("trainer.kubeflow.org", "TrainJob", {"spec": {"trainer": trainer}})
    assert (group.pods, group.containers[0].command, group.containers[0].env) == (2, ("torchrun",), {"A": "1"})
    assert group.containers[0].resources == {"limits": {"nvidia.com/gpu": 8}}


def test_a_job_sets_replicas_multiply():
    job = {"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 3, "template": a_template(a_container())}}}
    (group,) = pod_groups("jobset.x-k8s.io", "JobSet", {"spec": {"replicatedJobs": [job]}})
    assert group.pods == 6


def test_a_served_model_is_a_container_too():
    model = {"modelFormat": {"name": "huggingface"}, "args": ["--model", "m"], "resources": {}}
    (group,) = pod_groups("serving.kserve.io", "InferenceService", {"spec": {"predictor": {"model": model}}})
    assert group.containers[0].args == ("--model", "m")


def test_the_leaders_command_counts_where_it_has_one():
    leader, worker = a_template(a_container("--leader")), a_template(a_container("--worker"))
    both = {"size": 2, "leaderTemplate": leader, "workerTemplate": worker}
    (group,) = pod_groups(GROUPS["LeaderWorkerSet"], "LeaderWorkerSet", {"spec": {"leaderWorkerTemplate": both}})
    assert group.containers[0].args == ("--leader",)


def test_other_kinds_start_no_pods_that_are_read():
    assert pod_groups("", "ConfigMap", {"data": {}}) == ()


@pytest.mark.parametrize(
    ("kind", "manifest", "pointer"),
    [
        ("Pod", {}, "/spec"),
        ("Pod", {"spec": {"containers": {}}}, "/spec/containers"),
        ("Pod", {"spec": {"containers": [1]}}, "/spec/containers/0"),
        ("Pod", {"spec": {"containers": [{"args": "x"}]}}, "/spec/containers/0/args"),
        ("Pod", {"spec": {"containers": [{"command": [1]}]}}, "/spec/containers/0/command"),
        ("Pod", {"spec": {"containers": [{"env": [1]}]}}, "/spec/containers/0/env/0"),
        ("Deployment", {"spec": {}}, "/spec/template"),
        ("Job", {"spec": {"parallelism": "4", "template": {}}}, "/spec/parallelism"),
        ("Job", {"spec": {"parallelism": -1, "template": {}}}, "/spec/parallelism"),
        ("Job", {"spec": {"parallelism": True, "template": {}}}, "/spec/parallelism"),
        ("JobSet", {"spec": {"replicatedJobs": [None]}}, "/spec/replicatedJobs/0"),
        ("PyTorchJob", {"spec": {"pytorchReplicaSpecs": []}}, "/spec/pytorchReplicaSpecs"),
        ("LeaderWorkerSet", {"spec": {"leaderWorkerTemplate": {}}}, "/spec/leaderWorkerTemplate/workerTemplate"),
    ],
)
def test_a_part_of_the_wrong_form_is_named(kind: str, manifest, pointer: str):
    with pytest.raises(UnreadableObject) as raised:
        pod_groups(GROUPS[kind], kind, manifest)
    assert raised.value.pointer == pointer

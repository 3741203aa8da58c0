from __future__ import annotations

import pytest

from plimsoll.service.workloads.objects.object_parts import UnreadableObject
from plimsoll.service.workloads.objects.workloads import pod_group
from tests.service.admission.reviews import GROUPS, a_container, a_template, an_object


@pytest.mark.parametrize(
    ("kind", "pods"),
    [
        ("Pod", 1), ("Deployment", 1), ("StatefulSet", 1), ("Job", 4), ("JobSet", 4), ("PyTorchJob", 4),
        ("LeaderWorkerSet", 4), ("InferenceService", 1),
    ],
)  # fmt: skip
def test_the_pods_that_work_together_are_counted(kind: str, pods: int):
    group = pod_group(GROUPS[kind], kind, an_object(kind, a_container("--model", "m"), pods=pods))
    assert (group.pods, group.containers[0].args) == (pods, ("--model", "m"))


TORCHRUN = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "auto"}


def test_a_train_job_names_its_container_in_the_trainer():
    trainer = {
        "numNodes": 2, "command": ["torchrun"], "args": ["x.py"], "image": "i", "env": [{"name": "A", "value": "1"}],
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}},
    }  # fmt: skip
    group = pod_group("trainer.kubeflow.org", "TrainJob", {"spec": {"trainer": trainer}})
    assert (group.pods, group.containers[0].command, group.containers[0].env) == (
        2,
        ("torchrun",),
        {**TORCHRUN, "A": "1"},
    )
    assert group.containers[0].resources == {"limits": {"nvidia.com/gpu": 8}}


def test_a_job_sets_replicas_multiply():
    job = {"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 3, "template": a_template(a_container())}}}
    group = pod_group("jobset.x-k8s.io", "JobSet", {"spec": {"replicatedJobs": [job]}})
    assert group.pods == 6


def test_a_served_model_is_a_container_too():
    model = {"modelFormat": {"name": "huggingface"}, "args": ["--model", "m"], "resources": {}}
    group = pod_group("serving.kserve.io", "InferenceService", {"spec": {"predictor": {"model": model}}})
    assert group.containers[0].args == ("--model", "m")


def test_the_leaders_command_counts_where_it_has_one():
    leader, worker = a_template(a_container("--leader")), a_template(a_container("--worker"))
    both = {"size": 2, "leaderTemplate": leader, "workerTemplate": worker}
    group = pod_group(GROUPS["LeaderWorkerSet"], "LeaderWorkerSet", {"spec": {"leaderWorkerTemplate": both}})
    assert group.containers[0].args == ("--leader",)


def test_a_leader_counts_as_itself_where_its_workers_have_other_gpus():
    leader, worker = a_template(a_container(gpus=1)), a_template(a_container(gpus=8))
    both = {"size": 3, "leaderTemplate": leader, "workerTemplate": worker}
    group = pod_group(GROUPS["LeaderWorkerSet"], "LeaderWorkerSet", {"spec": {"leaderWorkerTemplate": both}})
    assert [member.count for member in group.members] == [1, 2]


def a_ray_cluster(*, hosts: int = 1) -> dict:
    group = {"replicas": 2, "numOfHosts": hosts, "template": a_template(a_container(gpus=8))}
    return {"headGroupSpec": {"template": a_template(a_container(gpus=0))}, "workerGroupSpecs": [group]}


@pytest.mark.parametrize(("hosts", "pods"), [(1, 3), (2, 5)])
def test_a_ray_cluster_is_its_head_and_its_workers(hosts: int, pods: int):
    group = pod_group("ray.io", "RayCluster", {"spec": a_ray_cluster(hosts=hosts)})
    assert (group.pods, group.replicas) == (pods, 1)


def test_a_ray_jobs_entrypoint_is_a_command_of_its_head():
    job = {"rayClusterSpec": a_ray_cluster(), "entrypoint": "vllm serve m"}
    group = pod_group("ray.io", "RayJob", {"spec": job})
    assert group.members[0].containers[-1].command == ("sh", "-c", "vllm serve m")


def test_an_mpi_job_is_its_launcher_and_its_workers():
    replicas = {
        "Launcher": {"replicas": 1, "template": a_template(a_container(gpus=0))},
        "Worker": {"replicas": 4, "template": a_template(a_container(gpus=8))},
    }
    assert pod_group("kubeflow.org", "MPIJob", {"spec": {"mpiReplicaSpecs": replicas}}).pods == 5


def test_a_volcano_job_is_its_tasks():
    tasks = [
        {"replicas": 1, "template": a_template(a_container())},
        {"replicas": 3, "template": a_template(a_container())},
    ]
    assert pod_group("batch.volcano.sh", "Job", {"spec": {"tasks": tasks}}).pods == 4


TRAINER = {"numNodes": 1, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}


@pytest.mark.parametrize(
    ("trainer", "told"),
    [
        (None, "numNodes and resourcesPerNode"),
        ({"numNodes": 2}, "resourcesPerNode of the trainer are left to the runtime torch"),
        ({"resourcesPerNode": TRAINER["resourcesPerNode"]}, "numNodes of the trainer"),
    ],
)
def test_what_a_train_job_leaves_to_its_runtime_is_named(trainer, told):
    spec = {"runtimeRef": {"name": "torch"}, **({} if trainer is None else {"trainer": trainer})}
    with pytest.raises(UnreadableObject, match=told):
        pod_group("trainer.kubeflow.org", "TrainJob", {"spec": spec})


@pytest.mark.parametrize(
    ("workers", "gpus", "pods"),
    [
        ({"pipelineParallelSize": 2}, 1, 2),
        ({"pipelineParallelSize": 2, "tensorParallelSize": 8}, 8, 2),
        # 16 ranks on nodes of 8.
        ({"tensorParallelSize": 16}, 8, 2),
    ],
)
def test_kserves_multi_node_runtime_divides_by_the_workers_sizes(workers, gpus, pods):
    model = {"modelFormat": {"name": "huggingface"}, "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    predictor = {"model": model, "workerSpec": workers}
    group = pod_group("serving.kserve.io", "InferenceService", {"spec": {"predictor": predictor}})
    tensor, pipeline = workers.get("tensorParallelSize", 1), workers.get("pipelineParallelSize", 1)
    sizes = (f"--tensor-parallel-size={tensor}", f"--pipeline-parallel-size={pipeline}")
    assert (group.pods, group.containers[0].args) == (pods, sizes)


def test_sizes_that_kserves_runtime_says_cannot_be_read():
    predictor = {"model": {"modelFormat": {"name": "huggingface"}}, "workerSpec": {}}
    with pytest.raises(UnreadableObject, match="workerSpec leaves its sizes to the runtime"):
        pod_group("serving.kserve.io", "InferenceService", {"spec": {"predictor": predictor}})


@pytest.mark.parametrize(
    "spec",
    [
        {"podTemplateOverrides": [{"spec": {"nodeSelector": {"a": "b"}}}, None]},
        {
            "runtimePatches": [
                None,
                {"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [
                    {"template": {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}}}, 5,
                ]}}}},
            ]
        },
    ],
)  # fmt: skip
def test_a_train_jobs_selector_stands_in_its_patches(spec):
    group = pod_group("trainer.kubeflow.org", "TrainJob", {"spec": {"trainer": TRAINER, **spec}})
    assert group.members[0].spec["nodeSelector"] == {"a": "b"}


@pytest.mark.parametrize(("least", "most", "replicas"), [(2, 2, 2), (1, 4, None)])
def test_replicas_that_something_else_scales_are_no_number(least: int, most: int, replicas: int | None):
    predictor = {"minReplicas": least, "maxReplicas": most, "containers": [a_container()]}
    group = pod_group("serving.kserve.io", "InferenceService", {"spec": {"predictor": predictor}})
    assert group.replicas == replicas


def test_other_kinds_start_no_pods_that_are_read():
    assert pod_group("", "ConfigMap", {"data": {}}) is None


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
        ("RayCluster", {"spec": {}}, "/spec/headGroupSpec"),
        (
            "RayJob",
            {"spec": {"rayClusterSpec": {"headGroupSpec": {"template": {"spec": {}}}}}},
            "/spec/rayClusterSpec/headGroupSpec/template/spec/containers",
        ),
        ("MPIJob", {"spec": {"mpiReplicaSpecs": {"Worker": 5}}}, "/spec/mpiReplicaSpecs/Worker"),
    ],
)
def test_a_part_of_the_wrong_form_is_named(kind: str, manifest, pointer: str):
    with pytest.raises(UnreadableObject) as raised:
        pod_group(GROUPS[kind], kind, manifest)
    assert raised.value.pointer == pointer

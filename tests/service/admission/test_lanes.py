from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.service.admission.kinds import pod_groups
from plimsoll.service.admission.lanes import UnreadableGpus, lanes
from tests.service.admission.reviews import GROUPS, H100, a_container

L40S = {"nvidia.com/gpu.product": "NVIDIA-L40S"}


def a_template(selector: dict[str, str] | None, gpus: int = 8) -> dict[str, Any]:
    return {"spec": {"containers": [a_container(gpus=gpus)], **({"nodeSelector": selector} if selector else {})}}


def leader_worker_set(leader, workers) -> dict[str, Any]:
    return {"leaderWorkerTemplate": {"size": 2, "leaderTemplate": leader, "workerTemplate": workers}}


def py_torch_job(master, workers) -> dict[str, Any]:
    replicas = {"Master": {"replicas": 1, "template": master}, "Worker": {"replicas": 1, "template": workers}}
    return {"pytorchReplicaSpecs": replicas}


def ray_cluster(head, workers) -> dict[str, Any]:
    return {"headGroupSpec": {"template": head}, "workerGroupSpecs": [{"replicas": 1, "template": workers}]}


def mpi_job(launcher, workers) -> dict[str, Any]:
    replicas = {"Launcher": {"replicas": 1, "template": launcher}, "Worker": {"replicas": 2, "template": workers}}
    return {"mpiReplicaSpecs": replicas}


KINDS = {"LeaderWorkerSet": leader_worker_set, "PyTorchJob": py_torch_job, "RayCluster": ray_cluster}


def lane(kind: str, spec: dict[str, Any]):
    (group,) = pod_groups(GROUPS[kind], kind, {"metadata": {}, "spec": spec})
    return lanes(group, catalogue())[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("selectors", [(H100, None), (None, H100), (H100, H100)])
def test_pods_that_select_no_gpu_run_on_the_one_that_the_others_select(kind: str, selectors):
    found = lane(kind, KINDS[kind](*(a_template(selector) for selector in selectors)))
    assert (found.demand.gpu, found.gpus) == ("h100-sxm-80gb", 16)


@pytest.mark.parametrize("kind", KINDS)
def test_pods_that_select_different_gpus_are_not_judged(kind: str):
    with pytest.raises(UnreadableGpus, match="different GPUs"):
        lane(kind, KINDS[kind](a_template(H100), a_template(L40S)))


def test_a_gpu_that_no_catalogue_has_is_another_one():
    with pytest.raises(UnreadableGpus, match="product=ODD"):
        lane("PyTorchJob", py_torch_job(a_template(H100), a_template({"nvidia.com/gpu.product": "ODD"})))


def test_a_launcher_without_gpus_says_nothing_of_the_workers():
    found = lane("MPIJob", mpi_job(a_template(L40S, gpus=0), a_template(H100)))
    assert (found.demand.gpu, found.gpus) == ("h100-sxm-80gb", 16)

"""Reviews as an API server sends them, and the workloads in them."""

from __future__ import annotations

import shlex
from typing import Any

from plimsoll.service.workloads.objects.pods import Container

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
GROUPS = {
    "Pod": "",
    "Deployment": "apps",
    "StatefulSet": "apps",
    "Job": "batch",
    "JobSet": "jobset.x-k8s.io",
    "PyTorchJob": "kubeflow.org",
    "TrainJob": "trainer.kubeflow.org",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io",
    "InferenceService": "serving.kserve.io",
    "RayCluster": "ray.io",
    "RayJob": "ray.io",
    "RayService": "ray.io",
    "MPIJob": "kubeflow.org",
    "VolcanoJob": "batch.volcano.sh",
}


# Those that `an_object` can make.
KINDS = (
    "Pod", "Deployment", "StatefulSet", "Job", "JobSet", "PyTorchJob", "LeaderWorkerSet", "InferenceService",
)  # fmt: skip


def a_plain_container(**parts: Any) -> Container:
    """Return a container as it was read, with nothing in it but what is given."""
    empty: dict[str, Any] = {
        "name": "main", "image": "x", "command": (), "args": (), "env": {}, "resources": {}, "pointer": "",
    }  # fmt: skip
    return Container(**{**empty, **parts})


def a_container(*args: str, gpus: int = 1, image: str = "vllm/vllm-openai:v0.19.0", **parts: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {"name": "main", "image": image, "args": list(args), "resources": {"limits": limits}, **parts}


def a_template(container: dict[str, Any], selector: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"containers": [container], "nodeSelector": selector or H100, **spec}}


def selector_of(template: dict[str, Any]) -> dict[str, str]:
    selector: dict[str, str] = template["spec"]["nodeSelector"]
    return selector


def an_object(kind: str, container: dict[str, Any], *, pods: int = 1, **template: Any) -> dict[str, Any]:
    """Return an object of that kind whose `pods` pods run the container together."""
    made = a_template(container, **template)
    spec = {
        "Pod": made["spec"],
        "Deployment": {"replicas": 3, "template": made},
        "StatefulSet": {"replicas": 3, "template": made},
        "Job": {"parallelism": pods, "completions": pods, "template": made},
        "JobSet": {"replicatedJobs": [{"name": "w", "template": {"spec": {"parallelism": pods, "template": made}}}]},
        "PyTorchJob": {
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": made},
                **({"Worker": {"replicas": pods - 1, "template": made}} if pods > 1 else {}),
            }
        },
        "LeaderWorkerSet": {"replicas": 2, "leaderWorkerTemplate": {"size": pods, "workerTemplate": made}},
        "InferenceService": {"predictor": made["spec"]},
        "MPIJob": {
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": a_template({**container, "resources": {}})},
                "Worker": {"replicas": pods, "template": a_template({**container, "command": ["sleep"], "args": []})},
            }
        },
        "TrainJob": {
            "runtimePatches": [
                {"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [
                    {"template": {"spec": {"template": {"spec": {"nodeSelector": selector_of(made)}}}}}
                ]}}}}
            ],
            "trainer": {
                **{name: container[name] for name in ("image", "command", "args") if name in container},
                "numNodes": pods, "resourcesPerNode": container["resources"],
            },
        },
        "RayJob": {
            "entrypoint": shlex.join([*container.get("command", ()), *container.get("args", ())]),
            "rayClusterSpec": {
                "headGroupSpec": {"template": a_template({**container, "command": ["ray"], "args": ["start"]})},
                "workerGroupSpecs": [
                    {"replicas": pods - 1, "template": a_template({**container, "command": ["ray"], "args": []})}
                ],
            },
        },
        "VolcanoJob": {"tasks": [{"replicas": pods, "template": made}]},
    }[kind]  # fmt: skip
    return {"metadata": {"name": "chat", "namespace": "serving"}, "spec": spec}


def a_review(
    kind: str, manifest: dict[str, Any] | None, *, operation: str = "CREATE", **request: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {
                "group": GROUPS.get(kind, "example.org"),
                "version": "v1",
                "kind": kind.removeprefix("Volcano"),
            },
            "name": "chat",
            "namespace": "serving",
            "operation": operation,
            "object": manifest,
            "oldObject": None,
            "dryRun": False,
            **request,
        },
    }

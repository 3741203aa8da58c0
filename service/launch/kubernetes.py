"""What all manifests have in common: names, the plan's annotation, and containers with GPUs.

Sources: the published types of Kubernetes (core/v1) and Kueue's label for the queue that admits a workload.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from plimsoll.planners.ground.hardware import Gpu
from plimsoll.service.launch.yaml_text import yaml_text
from plimsoll.service.workloads.objects.annotations import PLAN_ID
from plimsoll.service.workloads.objects.gpus import gpu_resource, product_selector

KUEUE_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
NAME_LABEL = "app.kubernetes.io/name"
# A name ends up in the names of pods and services, with suffixes: a DNS label has 63 characters at the most.
MOST_MODEL_CHARACTERS = 30
PLAN_ID_CHARACTERS = 8
# Where torch's and NCCL's processes of one pod share memory; Docker's own 64 MiB are too few for them.
SHARED_MEMORY = {"name": "shared-memory", "mountPath": "/dev/shm"}  # noqa: S108
# The secret a site keeps its hub token in; optional, because open checkpoints need none.
HUB_TOKEN = {
    "name": "HF_TOKEN",
    "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Whose plan a workload is, and the GPUs it runs on."""

    plan_id: str
    gpu: Gpu


def workload_name(model_name: str, plan_id: str) -> str:
    """Return a DNS label made of the model's name and the beginning of the plan's id."""
    model = re.sub(r"[^a-z0-9]+", "-", model_name.rpartition("/")[2].lower())
    return f"{model[:MOST_MODEL_CHARACTERS].strip('-') or 'model'}-{plan_id[:PLAN_ID_CHARACTERS]}"


def manifest(api_version: str, kind: str, name: str, placement: Placement, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object that names its plan, so that the admission webhook knows it."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "labels": {NAME_LABEL: name}, "annotations": {PLAN_ID: placement.plan_id}},
        "spec": dict(spec),
    }


def gpu_container(
    name: str, image: str, command: Sequence[str], *, gpu: Gpu, gpus: int, **parts: Any
) -> dict[str, Any]:
    """Return a container that runs a command on GPUs; processes of several share memory."""
    container = {
        "name": name,
        "image": image,
        "command": list(command),
        **parts,
        "resources": {"limits": {gpu_resource(gpu): gpus}},
    }
    if gpus > 1:
        container["volumeMounts"] = [*parts.get("volumeMounts", ()), SHARED_MEMORY]
    return container


def pod_spec(container: Mapping[str, Any], gpu: Gpu, **parts: Any) -> dict[str, Any]:
    """Return a pod's spec around one container, on nodes with that GPU where its label is known."""
    selector = product_selector(gpu)
    volumes = list(parts.pop("volumes", ()))
    if SHARED_MEMORY in container.get("volumeMounts", ()):
        volumes.append({"name": SHARED_MEMORY["name"], "emptyDir": {"medium": "Memory"}})
    return {
        **({"nodeSelector": selector} if selector else {}),
        **parts,
        "containers": [dict(container)],
        **({"volumes": volumes} if volumes else {}),
    }


def in_queue(text: str, queue: str) -> str | None:
    """Return a manifest whose workload waits in a queue of Kueue's, None where the text is no manifest."""
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError:
        return None
    planned = [document for document in documents if isinstance(document, dict) and PLAN_ID in _annotations(document)]
    for document in planned:
        document["metadata"]["labels"][KUEUE_QUEUE_LABEL] = queue
    comments = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("#"))
    return comments + yaml_text(*documents) if planned else None


def _annotations(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(document.get("metadata", {}).get("annotations", {}))

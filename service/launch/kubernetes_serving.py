"""Manifests that serve a plan: Deployment, LeaderWorkerSet where a replica spans nodes, KServe's InferenceService.

Sources: the published types of apps/v1, leaderworkerset.x-k8s.io/v1 and serving.kserve.io/v1beta1. LeaderWorkerSet
gives each pod LWS_LEADER_ADDRESS and, since 0.6, LWS_WORKER_INDEX.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.serving.answer import ServingPlan
from plimsoll.service.launch.checkpoint import Checkpoint
from plimsoll.service.launch.kubernetes import (
    HUB_TOKEN,
    NAME_LABEL,
    Placement,
    gpu_container,
    manifest,
    pod_spec,
    workload_name,
)
from plimsoll.service.launch.serving import SERVING_PORT, Nodes, NoOption, Server, ServingCommand, version_numbers
from plimsoll.service.launch.yaml_text import yaml_text

DEPLOYMENT, INFERENCE_SERVICE, LEADER_WORKER_SET = MANIFESTS = ("deployment", "inferenceservice", "leaderworkerset")
BY_LEADER_WORKER_SET = {"rank": "$(LWS_WORKER_INDEX)", "address": "$(LWS_LEADER_ADDRESS)"}
FILES_FOLDER = "/etc/plimsoll"
FILES_VOLUME = "options"
# Loading hundreds of GiB of weights from a slow store may take an hour.
PROBE_SECONDS, STARTUP_PROBES = 10, 360
# KServe tells the container that serves from others by this name.
KSERVE_CONTAINER = "kserve-container"
# Without Knative, whose revisions have no place for GPUs held by rolling updates.
KSERVE_MODE = {"serving.kserve.io/deploymentMode": "RawDeployment"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replicas:
    """Equal replicas of one program, each of `nodes` pods of `gpus_per_pod` GPUs."""

    name: str
    image: str
    server: Server
    count: int
    nodes: int
    gpus_per_pod: int
    placement: Placement


def serving_manifests(
    server: Server, checkpoint: Checkpoint, plan: ServingPlan, nodes: int, placement: Placement
) -> dict[str, str]:
    """Return the manifests of a plan by name.

    Raises `NoOption` where the program has no image for the GPU or cannot join nodes.
    """
    version, layout = plan.settings.engine_version, plan.layout
    image = server.image_for(placement.gpu, version)
    if image is None:
        raise NoOption(f"No image of {server.artifact} {version} for {placement.gpu.name} is known.")
    if nodes > 1 and (server.joins_nodes is None or version_numbers(version) < server.joins_nodes):
        raise NoOption(
            f"{server.artifact} {version} joins nodes by a cluster of another program's, started beforehand."
        )
    command = server.command(checkpoint, plan, Nodes(count=nodes, **BY_LEADER_WORKER_SET))
    replicas = _Replicas(
        name=workload_name(checkpoint.name, placement.plan_id),
        image=image,
        server=server,
        count=layout.data_parallel,
        nodes=nodes,
        gpus_per_pod=layout.gpus // layout.data_parallel // nodes,
        placement=placement,
    )
    if nodes > 1:
        return {LEADER_WORKER_SET: yaml_text(_leader_worker_set(replicas, command))}
    files = _config_map(replicas, command)
    return {
        DEPLOYMENT: yaml_text(*files, _deployment(replicas, command)),
        INFERENCE_SERVICE: yaml_text(*files, _inference_service(replicas, command)),
    }


def _deployment(replicas: _Replicas, command: ServingCommand) -> dict[str, Any]:
    labels = {NAME_LABEL: replicas.name}
    spec = {
        "replicas": replicas.count,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": _server(replicas, command, container="engine")},
    }
    return manifest("apps/v1", "Deployment", replicas.name, replicas.placement, spec)


def _inference_service(replicas: _Replicas, command: ServingCommand) -> dict[str, Any]:
    predictor = {
        "minReplicas": replicas.count,
        "maxReplicas": replicas.count,
        **_server(replicas, command, container=KSERVE_CONTAINER),
    }
    spec = {"predictor": predictor}
    made = manifest("serving.kserve.io/v1beta1", "InferenceService", replicas.name, replicas.placement, spec)
    made["metadata"]["annotations"] |= KSERVE_MODE
    return made


def _leader_worker_set(replicas: _Replicas, command: ServingCommand) -> dict[str, Any]:
    labels = {NAME_LABEL: replicas.name}
    leader = _server(replicas, command, container="engine")
    worker = _pod(replicas, command.worker_words or _listening(replicas, command.words), container="engine")
    spec = {
        "replicas": replicas.count,
        "leaderWorkerTemplate": {
            "size": replicas.nodes,
            # Its processes are one group: none of them goes on without the others.
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": {"metadata": {"labels": labels}, "spec": leader},
            "workerTemplate": {"metadata": {"labels": labels}, "spec": worker},
        },
    }
    return manifest("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", replicas.name, replicas.placement, spec)


def _server(replicas: _Replicas, command: ServingCommand, *, container: str) -> dict[str, Any]:
    """Return the spec of a pod that answers requests once its weights are loaded."""
    probe = {
        "httpGet": {"path": replicas.server.health_path, "port": SERVING_PORT},
        "periodSeconds": PROBE_SECONDS,
    }
    words = [f"{FILES_FOLDER}/{word}" if word in command.files else word for word in command.words]
    mounts = [{"name": FILES_VOLUME, "mountPath": FILES_FOLDER, "readOnly": True}] if command.files else []
    return _pod(
        replicas,
        _listening(replicas, words),
        container=container,
        files=bool(command.files),
        ports=[{"name": "http", "containerPort": SERVING_PORT}],
        startupProbe={**probe, "failureThreshold": STARTUP_PROBES},
        readinessProbe=probe,
        **({"volumeMounts": mounts} if mounts else {}),
    )


def _pod(
    replicas: _Replicas, words: Sequence[str], *, container: str, files: bool = False, **parts: Any
) -> dict[str, Any]:
    gpu = replicas.placement.gpu
    made = gpu_container(
        container, replicas.image, words, gpu=gpu, gpus=replicas.gpus_per_pod, env=[HUB_TOKEN], **parts
    )
    volumes = [{"name": FILES_VOLUME, "configMap": {"name": replicas.name}}] if files else []
    return pod_spec(made, gpu, volumes=volumes)


def _listening(replicas: _Replicas, words: Sequence[str]) -> list[str]:
    return [*words, *replicas.server.listen]


def _config_map(replicas: _Replicas, command: ServingCommand) -> list[dict[str, Any]]:
    if not command.files:
        return []
    metadata = {"name": replicas.name, "labels": {NAME_LABEL: replicas.name}}
    data = {name: text + "\n" for name, text in command.files.items()}
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}]

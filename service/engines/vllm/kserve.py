"""KServe's LLMInferenceService: vLLM's pods, started by KServe's own templates where the object names no command.

Sources: kserve, pkg/apis/serving/v1alpha2/llm_inference_service_types.go; in config/llmisvcconfig the templates
config-llm-template.yaml, config-llm-worker-data-parallel.yaml and config-llm-worker-pipeline-parallel.yaml.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from plimsoll.service.engines.vllm.flags import FLAGS
from plimsoll.service.launch.words import above_one, options
from plimsoll.service.workloads.commands.flags import option
from plimsoll.service.workloads.objects.object_parts import (
    Path,
    UnreadableObject,
    as_list,
    as_mapping,
    below,
    part_at,
    pod_count,
    pointer,
)
from plimsoll.service.workloads.objects.pods import PodGroup, Pods, pods_of

MAIN = "main"
HUGGING_FACE_URI = re.compile(r"^hf://([^:]+)")
# What `parallelism` says, and the field by which KServe's templates tell vLLM.
DEGREES = {"tensor": "tensor_parallel", "pipeline": "pipeline_parallel", "data": "data_parallel"}


def llm_inference_service(manifest: Mapping[str, Any]) -> tuple[PodGroup, ...]:
    """Return one replica's pods, and those of one that only prefills where there are such; raises UnreadableObject."""
    spec = part_at(manifest, ("spec",))
    roles: list[tuple[Mapping[str, Any], Path]] = [(spec, ("spec",))]
    if spec.get("prefill") is not None:
        roles.append((part_at(spec, ("prefill",), ("spec",)), ("spec", "prefill")))
    return tuple(_replica(manifest, role, path) for role, path in roles)


def _replica(manifest: Mapping[str, Any], role: Mapping[str, Any], path: Path) -> PodGroup:
    if role.get("template") is None:
        raise UnreadableObject(
            f"{pointer(path)} has no template: its pods are made by configs of KServe's, which are not in the object.",
            pointer=pointer(path),
        )
    parallelism = as_mapping(role.get("parallelism") or {}, (*path, "parallelism"))
    members = [_pods(manifest, role, "template", path, 1)]
    if role.get("worker") is not None:
        nodes = _nodes(parallelism, (*path, "parallelism"))
        members.append(_pods(manifest, role, "worker", path, max(nodes - 1, 0)))
    scaled = role.get("scaling") is not None
    replicas = None if scaled else pod_count(role, "replicas", path)
    return PodGroup(members=tuple(members), replicas=replicas, is_whole=role.get("worker") is not None)


def _nodes(parallelism: Mapping[str, Any], path: Path) -> int:
    """Return the pods of one replica: those that its data ranks need, or one for each stage of the pipeline."""
    data, local, stages = (max(pod_count(parallelism, name, path), 1) for name in ("data", "dataLocal", "pipeline"))
    return max(data // local, 1) if parallelism.get("data") else stages


def _pods(manifest: Mapping[str, Any], role: Mapping[str, Any], name: str, path: Path, count: int) -> Pods:
    place = (*path, name)
    pod = part_at(role, (name,), path)
    containers = [
        _started(as_mapping(container, (*place, "containers", str(number))), manifest, role, path)
        for number, container in enumerate(as_list(pod.get("containers"), (*place, "containers")))
    ]
    metadata = {"annotations": below(manifest, ("metadata", "annotations")) or {}}
    # The template is a pod's spec, with no metadata of its own.
    return pods_of({"metadata": metadata, "spec": {**pod, "containers": containers}}, place, count)


def _started(
    container: Mapping[str, Any], manifest: Mapping[str, Any], role: Mapping[str, Any], path: Path
) -> Mapping[str, Any]:
    """Return the engine's container with the command that KServe's template gives it; others as they are.

    VLLM_ADDITIONAL_ARGS and the container's own arguments come after KServe's.
    """
    if container.get("name", MAIN) != MAIN or container.get("command"):
        return container
    words = ["vllm", "serve", _model(manifest), *_degree_words(role, path)]
    if below(manifest, ("spec", "model", "lora", "adapters")):
        words.append("--enable-lora")
    text = f'{shlex.join(words)} ${{VLLM_ADDITIONAL_ARGS:-}} "$@"'
    return {**container, "command": ["bash", "-c", text, "--"]}


def _model(manifest: Mapping[str, Any]) -> str:
    """Return the model of the hub that KServe downloads; raises UnreadableObject where it is another, or may be."""
    if below(manifest, ("spec", "baseRefs")):
        raise UnreadableObject(
            "/spec/baseRefs names configs that may say how the engine is started, and are not in the object.",
            pointer="/spec/baseRefs",
        )
    uri = str(below(manifest, ("spec", "model", "uri")) or "")
    match = HUGGING_FACE_URI.match(uri)
    if match is None:
        raise UnreadableObject(
            f"/spec/model/uri {uri[:80]} does not say which model lies there.", pointer="/spec/model/uri"
        )
    return match[1]


def _degree_words(role: Mapping[str, Any], path: Path) -> list[str]:
    place = (*path, "parallelism")
    parallelism = as_mapping(role.get("parallelism") or {}, place)
    words = above_one(FLAGS, **{field: pod_count(parallelism, name, place) for name, field in DEGREES.items()})
    if parallelism.get("data") and role.get("worker") is not None:
        words += options(FLAGS, local_data_parallel=max(pod_count(parallelism, "dataLocal", place), 1))
    return [*words, *([option(FLAGS, "expert_parallel")] if parallelism.get("expert") is True else [])]

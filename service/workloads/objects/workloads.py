"""The pods that an object will start, whatever kind of object it is.

Sources: the published types of Kubernetes (core/v1, apps/v1, batch/v1), JobSet v1alpha2, Kubeflow's PyTorchJob v1,
MPIJob v1 and v2beta1 and TrainJob v1alpha1, LeaderWorkerSet v1, KServe's InferenceService v1beta1, Ray's RayJob and
RayCluster v1, and Volcano's Job v1alpha1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from plimsoll.service.workloads.objects.object_parts import (
    Path,
    UnreadableObject,
    as_list,
    as_mapping,
    below,
    each_of,
    part_at,
    pod_count,
    pointer,
)
from plimsoll.service.workloads.objects.pods import PodGroup, Pods, pods_of, told

WHOLE = re.compile(r"^[1-9][0-9]{0,5}$")
# The pods of one replica, as LeaderWorkerSet's controller tells every container (pkg/utils/pod/pod_utils.go).
LEADER_WORKER_SET_SIZE = "LWS_GROUP_SIZE"
# torchrun takes its options from variables too, which Kubeflow's controllers set: training-operator 1.6 and later,
# pkg/controller.v1/pytorch/envvar.go; trainer v2, pkg/runtime/framework/plugins/torch/torch.go.
TORCHRUN_NODES, TORCHRUN_PROCESSES = "PET_NNODES", "PET_NPROC_PER_NODE"
# The model format of KServe's server for Hugging Face's checkpoints, and how its runtime starts it.
KSERVE_HUGGING_FACE = "huggingface"
# A group that names no end to its growth has KubeRay's, which is as good as none (raycluster_types.go).
MOST_RAY_WORKERS = 1_000
# What KServe calls the container that it makes of a model.
KSERVE_CONTAINER = "kserve-container"
KSERVE_HUGGING_FACE_COMMAND = ("python3", "-m", "huggingfaceserver")


def pod_group(group: str, kind: str, manifest: Mapping[str, Any]) -> PodGroup | None:
    """Return the pods of an object that work together, None for kinds that are not read as one job or service.

    Raises UnreadableObject, with a pointer into the object, where a part is of the wrong form.
    """
    reader = READERS.get((group, kind))
    return None if reader is None else reader(manifest)


def _pod(manifest: Mapping[str, Any]) -> PodGroup:
    return PodGroup(members=(pods_of(manifest, ()),))


def _replicated(manifest: Mapping[str, Any]) -> PodGroup:
    # Each replica of a deployment is a service of its own.
    spec = part_at(manifest, ("spec",))
    template = part_at(spec, ("template",), ("spec",))
    return PodGroup(members=(pods_of(template, ("spec", "template")),), replicas=pod_count(spec, "replicas", ("spec",)))


def _job(manifest: Mapping[str, Any]) -> PodGroup:
    count = pod_count(part_at(manifest, ("spec",)), "parallelism", ("spec",))
    return PodGroup(members=(pods_of(part_at(manifest, ("spec", "template")), ("spec", "template"), count),))


def _job_set(manifest: Mapping[str, Any]) -> PodGroup:
    members = []
    for number, job in enumerate(
        as_list(part_at(manifest, ("spec",)).get("replicatedJobs"), ("spec", "replicatedJobs"))
    ):
        path = ("spec", "replicatedJobs", str(number))
        job = as_mapping(job, path)
        spec_path = (*path, "template", "spec")
        spec = part_at(job, ("template", "spec"), path)
        count = pod_count(job, "replicas", path) * pod_count(spec, "parallelism", spec_path)
        members.append(pods_of(part_at(spec, ("template",), spec_path), (*spec_path, "template"), count))
    return PodGroup(members=tuple(members), is_whole=True)


def _replica_specs(field: str) -> Callable[[Mapping[str, Any]], PodGroup]:
    """Return the reader of a Kubeflow job whose kinds of pods stand under that field of its spec, by name."""

    def read(manifest: Mapping[str, Any]) -> PodGroup:
        path = ("spec", field)
        members = []
        for name, part in part_at(manifest, path).items():
            replicas = as_mapping(part, (*path, name))
            template = part_at(replicas, ("template",), (*path, name))
            members.append(pods_of(template, (*path, name, "template"), pod_count(replicas, "replicas", (*path, name))))
        return PodGroup(members=tuple(members), is_whole=True)

    return read


def _pytorch_job(manifest: Mapping[str, Any]) -> PodGroup:
    group = _replica_specs("pytorchReplicaSpecs")(manifest)
    spec = part_at(manifest, ("spec",))
    if spec.get("elasticPolicy"):
        # Its own numbers are the ends of a range.
        return group
    return _with_torchrun(group, spec.get("nprocPerNode"))


def _with_torchrun(group: PodGroup, processes: object) -> PodGroup:
    env = {TORCHRUN_NODES: str(group.pods), TORCHRUN_PROCESSES: str(processes or "auto")}
    return replace(group, members=tuple(told(pods, env) for pods in group.members))


def _train_job(manifest: Mapping[str, Any]) -> PodGroup:
    path = ("spec", "trainer")
    trainer = as_mapping(part_at(manifest, ("spec",)).get("trainer") or {}, path)
    unsaid = [name for name in ("numNodes", "resourcesPerNode") if not trainer.get(name)]
    if unsaid:
        runtime = below(manifest, ("spec", "runtimeRef", "name"))
        raise UnreadableObject(
            f"{' and '.join(unsaid)} of the trainer are left to the runtime {str(runtime or '')[:60]}, "
            "which is not in the object.",
            pointer=pointer(path),
        )
    container = {**trainer, "name": "trainer", "resources": trainer.get("resourcesPerNode") or {}}
    spec = {"containers": [container], "nodeSelector": _patched_selector(part_at(manifest, ("spec",)))}
    template = {"metadata": manifest.get("metadata") or {}, "spec": spec}
    group = PodGroup(members=(pods_of(template, path, pod_count(trainer, "numNodes", path)),), is_whole=True)
    return _with_torchrun(group, trainer.get("numProcPerNode"))


def _patched_selector(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node selectors that a TrainJob adds to its runtime.

    They stand in `runtimePatches`, before Trainer 2.2 in `podTemplateOverrides`.
    """
    pods = [below(override, ("spec",)) for override in each_of(spec.get("podTemplateOverrides"))]
    for patch in each_of(spec.get("runtimePatches")):
        jobs = below(patch, ("trainingRuntimeSpec", "template", "spec", "replicatedJobs"))
        pods += [below(job, ("template", "spec", "template", "spec")) for job in each_of(jobs)]
    selectors = (below(pod, ("nodeSelector",)) for pod in pods)
    return {name: text for selector in selectors if isinstance(selector, dict) for name, text in selector.items()}


def _leader_worker_set(manifest: Mapping[str, Any]) -> PodGroup:
    path = ("spec", "leaderWorkerTemplate")
    spec, both = part_at(manifest, ("spec",)), part_at(manifest, path)
    workers = pods_of(
        part_at(both, ("workerTemplate",), path), (*path, "workerTemplate"), pod_count(both, "size", path)
    )
    members: tuple[Pods, ...] = (workers,)
    if both.get("leaderTemplate"):
        leader = pods_of(part_at(both, ("leaderTemplate",), path), (*path, "leaderTemplate"))
        members = (leader, replace(workers, count=max(workers.count - 1, 0)))
    members = tuple(told(pods, {LEADER_WORKER_SET_SIZE: str(workers.count)}) for pods in members)
    return PodGroup(members=members, replicas=pod_count(spec, "replicas", ("spec",)), is_whole=True)


def _inference_service(manifest: Mapping[str, Any]) -> PodGroup:
    path = ("spec", "predictor")
    predictor = part_at(manifest, path)
    model = predictor.get("model")
    sizes = _worker_sizes(predictor, (*path, "workerSpec"))
    of_model = _model_container(as_mapping(model, (*path, "model")), sizes) if model else None
    containers = predictor.get("containers") or ([of_model] if of_model else [])
    template = {"metadata": manifest.get("metadata") or {}, "spec": {**predictor, "containers": containers}}
    pods = 1 if sizes is None else sizes.nodes(model or {})
    least, most = (pod_count(predictor, name, path) for name in ("minReplicas", "maxReplicas"))
    replicas = least if least == most else None
    return PodGroup(members=(pods_of(template, path, pods),), replicas=replicas, is_whole=sizes is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WorkerSizes:
    """How KServe's multi-node runtime divides one replica."""

    tensor: int
    pipeline: int

    def nodes(self, model: Mapping[str, Any]) -> int:
        """Return the pods of one replica: as many as hold all ranks (kserve, RAY_NODE_COUNT)."""
        gpus = str(below(model, ("resources", "limits", "nvidia.com/gpu")) or self.tensor)
        each = int(gpus) if WHOLE.match(gpus) else self.tensor
        return max(self.pipeline, -(-self.tensor * self.pipeline // max(each, 1)))

    @property
    def words(self) -> list[str]:
        """Return the words that the runtime's command has for them."""
        return [f"--tensor-parallel-size={self.tensor}", f"--pipeline-parallel-size={self.pipeline}"]


def _worker_sizes(predictor: Mapping[str, Any], path: Path) -> _WorkerSizes | None:
    """Return the sizes of a replica of several nodes, None for one of one; raises where the runtime says them."""
    if predictor.get("workerSpec") is None:
        return None
    workers = as_mapping(predictor["workerSpec"], path)
    names = ("tensorParallelSize", "pipelineParallelSize")
    if not any(workers.get(name) for name in names):
        raise UnreadableObject(f"{pointer(path)} leaves its sizes to the runtime.", pointer=pointer(path))
    tensor, pipeline = (max(pod_count(workers, name, path), 1) for name in names)
    return _WorkerSizes(tensor=tensor, pipeline=pipeline)


def _model_container(model: Mapping[str, Any], sizes: _WorkerSizes | None) -> Mapping[str, Any]:
    """Return the container of a model that names its format and no program: KServe's own server of that format.

    Its runtime for `huggingface` starts `python -m huggingfaceserver`, and mounts
    what `storageUri` names at /mnt/models (kserve, config/runtimes/kserve-huggingfaceserver.yaml).
    """
    model = {**model, "name": KSERVE_CONTAINER}
    if model.get("command") or below(model, ("modelFormat", "name")) != KSERVE_HUGGING_FACE:
        return model
    args = each_of(model.get("args"))
    stored = _stored_name(str(model.get("storageUri") or ""))
    named = any(str(word).startswith(("--model_id", "--model-id")) for word in args)
    model_id = [f"--model_id={stored}"] if stored and not named else []
    # What the multi-node runtime adds comes first, for the last of two is the one that counts.
    divided = [] if sizes is None else sizes.words
    return {**model, "command": list(KSERVE_HUGGING_FACE_COMMAND), "args": [*divided, *model_id, *args]}


def _stored_name(address: str) -> str:
    """Return the hub's name of a model, without its revision; of another store the address, which tells no model."""
    hub, _, name = address.partition("hf://")
    return name.partition(":")[0] if name and not hub else address


def _ray_cluster(manifest: Mapping[str, Any]) -> PodGroup:
    return PodGroup(members=ray_pods(part_at(manifest, ("spec",)), ("spec",)), is_whole=True)


def _ray_job(manifest: Mapping[str, Any]) -> PodGroup:
    spec = part_at(manifest, ("spec",))
    path = ("spec", "rayClusterSpec")
    head, *workers = ray_pods(part_at(manifest, path), path)
    entrypoint = spec.get("entrypoint")
    if isinstance(entrypoint, str):
        # It runs beside Ray in the head's pod, in whose image and environment it is.
        submitted = replace(head.containers[0], command=("sh", "-c", entrypoint), args=(), resources={})
        head = replace(head, containers=(*head.containers, submitted))
    return PodGroup(members=(head, *workers), is_whole=True)


def ray_pods(cluster: Mapping[str, Any], path: Path) -> tuple[Pods, ...]:
    """Return the pods of a Ray cluster's spec, the head first; raises UnreadableObject.

    A cluster that Ray scales (`enableInTreeAutoscaling`) has as many as it may come to have.
    """
    head_path = (*path, "headGroupSpec", "template")
    head = pods_of(part_at(cluster, ("headGroupSpec", "template"), path), head_path)
    if not head.containers:
        raise UnreadableObject(
            f"{pointer(head_path)} has no container.", pointer=pointer((*head_path, "spec", "containers"))
        )
    members = [head]
    for number, group in enumerate(as_list(cluster.get("workerGroupSpecs"), (*path, "workerGroupSpecs"))):
        place = (*path, "workerGroupSpecs", str(number))
        workers = as_mapping(group, place)
        groups = pod_count(workers, "replicas", place)
        if cluster.get("enableInTreeAutoscaling") is True:
            groups = max(groups, min(pod_count(workers, "maxReplicas", place), MOST_RAY_WORKERS))
        count = groups * pod_count(workers, "numOfHosts", place)
        members.append(pods_of(part_at(workers, ("template",), place), (*place, "template"), count))
    return tuple(members)


def _volcano_job(manifest: Mapping[str, Any]) -> PodGroup:
    members = []
    for number, task in enumerate(as_list(part_at(manifest, ("spec",)).get("tasks"), ("spec", "tasks"))):
        path = ("spec", "tasks", str(number))
        pods = as_mapping(task, path)
        members.append(
            pods_of(part_at(pods, ("template",), path), (*path, "template"), pod_count(pods, "replicas", path))
        )
    return PodGroup(members=tuple(members), is_whole=True)


READERS: Mapping[tuple[str, str], Callable[[Mapping[str, Any]], PodGroup]] = {
    ("", "Pod"): _pod,
    ("apps", "Deployment"): _replicated,
    ("apps", "StatefulSet"): _replicated,
    ("batch", "Job"): _job,
    ("jobset.x-k8s.io", "JobSet"): _job_set,
    ("kubeflow.org", "PyTorchJob"): _pytorch_job,
    ("kubeflow.org", "MPIJob"): _replica_specs("mpiReplicaSpecs"),
    ("trainer.kubeflow.org", "TrainJob"): _train_job,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
    ("serving.kserve.io", "InferenceService"): _inference_service,
    ("ray.io", "RayCluster"): _ray_cluster,
    ("ray.io", "RayJob"): _ray_job,
    ("batch.volcano.sh", "Job"): _volcano_job,
}

"""The pods that an object will start, whatever kind of object it is.

Sources: the published types of Kubernetes (core/v1, apps/v1, batch/v1), JobSet v1alpha2, Kubeflow's PyTorchJob v1 and
TrainJob v1alpha1, LeaderWorkerSet v1 and KServe's InferenceService v1beta1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planners.errors import PlimsollError


class UnreadableObject(PlimsollError):
    """A part of the object is not what its kind says it is."""

    code = "unreadable-object"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container with what of it decides memory; `env` holds the plainly written values only."""

    name: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]
    resources: Mapping[str, Any]
    pointer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """Equal pods that work together: `pods` of them are one job or one replica."""

    name: str
    pods: int
    containers: tuple[Container, ...]
    spec: Mapping[str, Any]
    annotations: Mapping[str, str]


Path = tuple[str, ...]


def pod_groups(group: str, kind: str, manifest: Mapping[str, Any]) -> tuple[PodGroup, ...]:
    """Return the groups of pods of an object, none for kinds that are not read.

    Raises UnreadableObject, with a pointer into the object, where a part is of the wrong form.
    """
    reader = READERS.get((group, kind))
    return () if reader is None else tuple(reader(manifest))


def _pod(manifest: Mapping[str, Any]) -> Iterator[PodGroup]:
    yield _group(manifest, (), name="pod", pods=1)


def _replicated(manifest: Mapping[str, Any]) -> Iterator[PodGroup]:
    # Each replica of a deployment is a service of its own.
    yield _group(_at(manifest, ("spec", "template")), ("spec", "template"), name="replica", pods=1)


def _job(manifest: Mapping[str, Any]) -> Iterator[PodGroup]:
    pods = _count(_at(manifest, ("spec",)), "parallelism", ("spec",))
    yield _group(_at(manifest, ("spec", "template")), ("spec", "template"), name="job", pods=pods)


def _job_set(manifest: Mapping[str, Any]) -> Iterator[PodGroup]:
    for number, job in enumerate(_list(_at(manifest, ("spec",)).get("replicatedJobs"), ("spec", "replicatedJobs"))):
        path = ("spec", "replicatedJobs", str(number))
        job = _mapping(job, path)
        spec_path = (*path, "template", "spec")
        spec = _at(job, ("template", "spec"), path)
        pods = _count(job, "replicas", path) * _count(spec, "parallelism", spec_path)
        name = str(job.get("name", number))
        yield _group(_at(spec, ("template",), spec_path), (*spec_path, "template"), name=name, pods=pods)


def _pytorch_job(manifest: Mapping[str, Any]) -> Iterator[PodGroup]:
    path = ("spec", "pytorchReplicaSpecs")
    replicas = {name: _mapping(part, (*path, name)) for name, part in _at(manifest, path).items()}
    # Master and workers run the same command; together they are one job.
    pods = sum(_count(part, "replicas", (*path, name)) for name, part in replicas.items())
    name = "Worker" if "Worker" in replicas else next(iter(replicas), "")
    if name:
        template = (*path, name, "template")
        yield _group(_at(replicas[name], ("template",), (*path, name)), template, name=name, pods=pods)


def _train_job(manifest: Mapping[str, Any]) -> Iterator[PodGroup]:
    path = ("spec", "trainer")
    trainer = _at(manifest, path)
    container = {**trainer, "name": "trainer", "resources": trainer.get("resourcesPerNode") or {}}
    template = {"metadata": manifest.get("metadata") or {}, "spec": {"containers": [container]}}
    yield _group(template, path, name="trainer", pods=_count(trainer, "numNodes", path))


def _leader_worker_set(manifest: Mapping[str, Any]) -> Iterator[PodGroup]:
    path = ("spec", "leaderWorkerTemplate")
    both = _at(manifest, path)
    # The leader carries the launch command; without one of its own it is a worker like the others.
    name = "leaderTemplate" if both.get("leaderTemplate") else "workerTemplate"
    yield _group(_at(both, (name,), path), (*path, name), name="group", pods=_count(both, "size", path))


def _inference_service(manifest: Mapping[str, Any]) -> Iterator[PodGroup]:
    path = ("spec", "predictor")
    predictor = _at(manifest, path)
    model = predictor.get("model")
    containers = predictor.get("containers") or ([_mapping(model, (*path, "model"))] if model else [])
    template = {"metadata": manifest.get("metadata") or {}, "spec": {**predictor, "containers": containers}}
    pods = _count(_mapping(predictor.get("workerSpec") or {}, (*path, "workerSpec")), "pipelineParallelSize", path)
    yield _group(template, path, name="predictor", pods=pods)


READERS: Mapping[tuple[str, str], Callable[[Mapping[str, Any]], Iterator[PodGroup]]] = {
    ("", "Pod"): _pod,
    ("apps", "Deployment"): _replicated,
    ("apps", "StatefulSet"): _replicated,
    ("batch", "Job"): _job,
    ("jobset.x-k8s.io", "JobSet"): _job_set,
    ("kubeflow.org", "PyTorchJob"): _pytorch_job,
    ("trainer.kubeflow.org", "TrainJob"): _train_job,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
    ("serving.kserve.io", "InferenceService"): _inference_service,
}


def _group(template: Mapping[str, Any], path: Path, *, name: str, pods: int) -> PodGroup:
    spec = _at(template, ("spec",), path)
    metadata = _mapping(template.get("metadata") or {}, (*path, "metadata"))
    containers = _list(spec.get("containers"), (*path, "spec", "containers"))
    return PodGroup(
        name=name,
        pods=pods,
        containers=tuple(
            _container(container, (*path, "spec", "containers", str(number)))
            for number, container in enumerate(containers)
        ),
        spec=spec,
        annotations=annotations_of({"metadata": metadata}),
    )


def annotations_of(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    """Return an object's annotations; what is no text is left away."""
    metadata = manifest.get("metadata")
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return {key: text for key, text in found.items() if isinstance(text, str)} if isinstance(found, dict) else {}


def _container(value: Any, path: Path) -> Container:
    container = _mapping(value, path)
    return Container(
        name=str(container.get("name", "")),
        image=str(container.get("image", "")),
        command=_texts(container.get("command"), (*path, "command")),
        args=_texts(container.get("args"), (*path, "args")),
        env=_plain_env(container.get("env"), (*path, "env")),
        resources=_mapping(container.get("resources") or {}, (*path, "resources")),
        pointer=pointer(path),
    )


def _plain_env(value: Any, path: Path) -> Mapping[str, str]:
    entries = (_mapping(entry, (*path, str(number))) for number, entry in enumerate(_list(value, path)))
    return {str(entry.get("name")): entry["value"] for entry in entries if isinstance(entry.get("value"), str)}


def pointer(path: Path) -> str:
    """Return the JSON pointer (RFC 6901) of a path into the object."""
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in path)


def _at(value: Mapping[str, Any], steps: Path, above: Path = ()) -> Mapping[str, Any]:
    for done, step in enumerate(steps, start=1):
        value = _mapping(value.get(step), (*above, *steps[:done]))
    return value


def _mapping(value: Any, path: Path) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UnreadableObject(f"{pointer(path) or 'The object'} must be an object.", pointer=pointer(path))
    return value


def _list(value: Any, path: Path) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise UnreadableObject(f"{pointer(path)} must be a list.", pointer=pointer(path))
    return value


def _texts(value: Any, path: Path) -> tuple[str, ...]:
    items = _list(value, path)
    if not all(isinstance(item, str) for item in items):
        raise UnreadableObject(f"{pointer(path)} must be a list of texts.", pointer=pointer(path))
    return tuple(items)


def _count(value: Mapping[str, Any], name: str, path: Path) -> int:
    """Return a number of pods, 1 where none is written."""
    count = value.get(name)
    if count is None:
        return 1
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        where = pointer((*path, name))
        raise UnreadableObject(f"{where} must be a whole number of at least 0.", pointer=where)
    return count

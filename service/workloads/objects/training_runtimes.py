"""What a TrainJob leaves to the runtime that it names: the nodes, their labels, and the trainer's container.

Sources: kubeflow/trainer, pkg/apis/trainer/v1alpha1/trainingruntime_types.go and trainjob_types.go;
pkg/runtime/framework/plugins/jobset (the trainer's own fields replace the runtime's, variables are merged by name).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from plimsoll.service.workloads.objects.object_parts import ObjectNotRead, UnreadableObject, below, each_of, pointer

GROUP_AND_KIND = ("trainer.kubeflow.org", "TrainJob")
CLUSTER_RUNTIME, NAMESPACED_RUNTIME = "ClusterTrainingRuntime", "TrainingRuntime"
ANCESTOR_LABEL, TRAINER, CONTAINER = "trainer.kubeflow.org/trainjob-ancestor-step", "trainer", "node"
# What a TrainJob has to say where its runtime is not at hand.
NEEDED = ("numNodes", "resourcesPerNode")
TRAINER_PATH = ("spec", "trainer")


class TrainingRuntimes(Protocol):
    """Finds runtimes."""

    async def get(self, kind: str, namespace: str, name: str) -> Mapping[str, Any]:
        """Return a runtime; those of the cluster have no namespace. Raises ObjectNotRead."""
        ...


class NoRuntimes:
    """No API is configured that runtimes could be read through."""

    async def get(self, kind: str, namespace: str, name: str) -> Mapping[str, Any]:  # noqa: ARG002
        """Raise ObjectNotRead."""
        raise ObjectNotRead("no Kubernetes API is configured to read it through")


class GivenRuntimes:
    """Runtimes that stand beside the workload, by kind, namespace (empty for the cluster's) and name."""

    def __init__(self, given: Mapping[tuple[str, str, str], Mapping[str, Any]]) -> None:
        """Take them."""
        self._given = given

    async def get(self, kind: str, namespace: str, name: str) -> Mapping[str, Any]:
        """Return a runtime; raises ObjectNotRead where it is none of them."""
        key = (kind, "" if kind == CLUSTER_RUNTIME else namespace, name)
        if key not in self._given:
            raise ObjectNotRead("it is not in the file")
        return self._given[key]


async def with_runtime(manifest: Mapping[str, Any], namespace: str, runtimes: TrainingRuntimes) -> Mapping[str, Any]:
    """Return a TrainJob with what its runtime says where it says nothing itself.

    As it is where the runtime cannot be read and the job says enough; raises
    UnreadableObject with the reason where it does not.
    """
    reference = below(manifest, ("spec", "runtimeRef"))
    kind, name = (str(below(reference, (step,)) or "") for step in ("kind", "name"))
    try:
        runtime = await runtimes.get(kind or CLUSTER_RUNTIME, namespace, name)
    except ObjectNotRead as error:
        unsaid = [field for field in NEEDED if not below(manifest, (*TRAINER_PATH, field))]
        if not unsaid:
            return manifest
        raise UnreadableObject(
            f"{' and '.join(unsaid)} of the trainer are left to the runtime {name[:60]}, which is not in the object "
            f"({error}).",
            pointer=pointer(TRAINER_PATH),
        ) from error
    return _filled(manifest, runtime)


def _filled(manifest: Mapping[str, Any], runtime: Mapping[str, Any]) -> Mapping[str, Any]:
    own = below(manifest, TRAINER_PATH)
    trainer = {name: value for name, value in (own if isinstance(own, dict) else {}).items() if value}
    if below(runtime, ("spec", "mlPolicy", "mpi")) is not None:
        # The launcher is the trainer there, and its workers are another job of the runtime.
        return manifest
    pod = _trainers_pod(runtime)
    container = _container(pod)
    filled = {
        "numNodes": below(runtime, ("spec", "mlPolicy", "numNodes")) or 1,
        "resourcesPerNode": container.get("resources") or {},
        **{name: container[name] for name in ("image", "command", "args") if container.get(name)},
        **trainer,
        "env": _merged(each_of(container.get("env")), each_of(trainer.get("env"))),
    }
    selector = {"spec": {"nodeSelector": below(pod, ("nodeSelector",))}}
    overrides = [selector, *each_of(below(manifest, ("spec", "podTemplateOverrides")))]
    return {**manifest, "spec": {**manifest["spec"], "trainer": filled, "podTemplateOverrides": overrides}}


def _trainers_pod(runtime: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the spec of the pods that train: those of the job with the trainer's label, or of the only one."""
    jobs = each_of(below(runtime, ("spec", "template", "spec", "replicatedJobs")))
    labelled = [
        job for job in jobs if below(job, ("template", "metadata", "labels", ANCESTOR_LABEL)) == TRAINER
    ] or jobs
    pod = below(labelled[0], ("template", "spec", "template", "spec")) if len(labelled) == 1 else None
    return pod if isinstance(pod, dict) else {}


def _container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = [container for container in each_of(pod.get("containers")) if isinstance(container, dict)]
    named = [container for container in containers if container.get("name") == CONTAINER]
    return next(iter(named or containers), {})


def _merged(runtimes: list[Any], own: list[Any]) -> list[Any]:
    """Return the variables of both, the job's own in the place of the runtime's by name."""
    names = {below(entry, ("name",)) for entry in own}
    return [*(entry for entry in runtimes if below(entry, ("name",)) not in names), *own]

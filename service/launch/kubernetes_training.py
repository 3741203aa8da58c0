"""Manifests that train a plan: Kubeflow's PyTorchJob v1 and TrainJob, and JobSet.

Each starts one pod a node and in it `torchrun`, one process a GPU. Sources: kubeflow.org/v1 (training-operator
1.9: pkg/controller.v1/pytorch/envvar.go gives each pod MASTER_ADDR, MASTER_PORT and, as RANK, its number),
trainer.kubeflow.org/v1alpha1 (Trainer 2.3: the runtime torch-distributed gives torchrun its arguments as PET_…),
jobset.x-k8s.io/v1alpha2 (a pod's host name is <set>-<job>-<job's index>-<pod's index>, the subdomain the set's name).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.plans import Layout
from plimsoll.service.launch.kubernetes import Placement, gpu_container, manifest, pod_spec, workload_name
from plimsoll.service.launch.yaml_text import yaml_text
from plimsoll.service.workloads.objects.gpus import gpu_resource, product_selector

# The script and the image it runs in are the reader's own.
SCRIPT = ("train.py",)
IMAGE = "$IMAGE"
YOURS = "# The script is yours, and so is $IMAGE, the image that has it.\n"
# torch.distributed.run's own default.
MEETING_PORT = 29_500
# Kubeflow's operator looks for the container by this name.
PYTORCH_CONTAINER = "pytorch"
TORCH_RUNTIME = {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": "torch-distributed"}
# The job that trains, in every runtime of Kubeflow's own.
RUNTIME_JOB = "node"
PATCHED_BY = "plimsoll.dev/plan"
WORKERS = "workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A training job of `nodes` pods with `gpus_per_pod` GPUs each."""

    name: str
    nodes: int
    gpus_per_pod: int
    placement: Placement

    def torchrun(self, *arguments: str) -> list[str]:
        """Return the command of one pod."""
        each = (f"--nnodes={self.nodes}", f"--nproc-per-node={self.gpus_per_pod}")
        return ["torchrun", *each, *arguments, *SCRIPT]

    def pod(self, words: Sequence[str], *, container: str = "train") -> dict[str, Any]:
        """Return a pod's spec that runs the words once."""
        gpu = self.placement.gpu
        return pod_spec(gpu_container(container, IMAGE, words, gpu=gpu, gpus=self.gpus_per_pod), gpu)


def training_manifests(model_name: str, layout: Layout, hardware: Hardware, placement: Placement) -> dict[str, str]:
    """Return the manifests of a training plan by name, none where its GPUs cannot be dealt out evenly over nodes."""
    gpus_per_pod = min(layout.gpus, hardware.gpus_per_host)
    if layout.gpus % gpus_per_pod:
        return {}
    job = _Job(
        name=workload_name(model_name, placement.plan_id),
        nodes=layout.gpus // gpus_per_pod,
        gpus_per_pod=gpus_per_pod,
        placement=placement,
    )
    return {name: YOURS + yaml_text(manifest_of(job)) for name, manifest_of in MANIFESTS.items()}


def _pytorch_job(job: _Job) -> dict[str, Any]:
    meeting = ("--node-rank=$(RANK)", "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)")
    template = {"spec": job.pod(job.torchrun(*meeting), container=PYTORCH_CONTAINER)}
    replicas = {"Master": {"replicas": 1, "restartPolicy": "OnFailure", "template": template}}
    if job.nodes > 1:
        replicas["Worker"] = {**replicas["Master"], "replicas": job.nodes - 1}
    return manifest("kubeflow.org/v1", "PyTorchJob", job.name, job.placement, {"pytorchReplicaSpecs": replicas})


def _train_job(job: _Job) -> dict[str, Any]:
    gpu = job.placement.gpu
    spec: dict[str, Any] = {
        "runtimeRef": TORCH_RUNTIME,
        "trainer": {
            "image": IMAGE,
            "command": ["torchrun", *SCRIPT],
            "numNodes": job.nodes,
            "numProcPerNode": job.gpus_per_pod,
            "resourcesPerNode": {"limits": {gpu_resource(gpu): job.gpus_per_pod}},
        },
    }
    selector = product_selector(gpu)
    if selector:
        pod = {"template": {"spec": {"template": {"spec": {"nodeSelector": selector}}}}}
        patch = {"template": {"spec": {"replicatedJobs": [{"name": RUNTIME_JOB, **pod}]}}}
        spec["runtimePatches"] = [{"manager": PATCHED_BY, "trainingRuntimeSpec": patch}]
    return manifest("trainer.kubeflow.org/v1alpha1", "TrainJob", job.name, job.placement, spec)


def _job_set(job: _Job) -> dict[str, Any]:
    first = f"{job.name}-{WORKERS}-0-0.{job.name}"
    meeting = ("--node-rank=$(JOB_COMPLETION_INDEX)", f"--master-addr={first}", f"--master-port={MEETING_PORT}")
    pods = {
        "parallelism": job.nodes,
        "completions": job.nodes,
        "completionMode": "Indexed",
        # One lost node ends the collective of all: the set is started again as a whole.
        "backoffLimit": 0,
        "template": {"spec": {"restartPolicy": "Never", **job.pod(job.torchrun(*meeting))}},
    }
    spec = {
        "failurePolicy": {"maxRestarts": 3},
        "network": {"enableDNSHostnames": True},
        "replicatedJobs": [{"name": WORKERS, "replicas": 1, "template": {"spec": pods}}],
    }
    return manifest("jobset.x-k8s.io/v1alpha2", "JobSet", job.name, job.placement, spec)


MANIFESTS: Mapping[str, Callable[[_Job], dict[str, Any]]] = {
    "pytorchjob": _pytorch_job,
    "trainjob": _train_job,
    "jobset": _job_set,
}

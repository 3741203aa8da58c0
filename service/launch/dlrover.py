"""DLRover's ElasticJob: nodes are checked before they train, and a faulty one is relaunched elsewhere.

Fields: intelligent-machine-learning/dlrover, `examples/pytorch/llama2/elastic_job.yaml`
and what its master reads of them (dlrover 0.6.1, `python/scheduler/kubernetes.py`);
options: `trainer/torch/elastic_run.py`. The image is the reader's. What the
script saves through DLRover's flash checkpoint lies in shared memory, which
outlives the process, and is written to storage at a fault.
"""

from __future__ import annotations

from plimsoll.planners.ground.units import MIB
from plimsoll.service.launch.script import Script
from plimsoll.service.launch.training import (
    MAX_RESTARTS,
    Placeholder,
    Target,
    TrainingLaunch,
    given_reasons,
    uneven_nodes,
)
from plimsoll.service.launch.yaml_text import yaml_text

JOB_NAME = "plimsoll-training"
NAMESPACE = "dlrover"
IMAGE = Placeholder("$IMAGE")


def dlrover(script: Script) -> Target:
    """Return the job that runs a stack's script on every node."""
    return Target(
        name="dlrover",
        is_starter=True,
        saved_as="dlrover.yaml",
        why_not=lambda launch: given_reasons(uneven_nodes(launch)),
        write=lambda launch: elastic_job(launch, script),
    )


def _command(launch: TrainingLaunch, script: Script) -> str:
    """Return what every node runs: the checks, then one process a GPU."""
    words = [
        "dlrover-run",
        "--network-check",
        "--exclude-straggler",
        "--save_at_breakpoint",
        f"--nnodes={script.nodes_text(launch)}",
        f"--nproc_per_node={launch.processes_per_node}",
        f"--max_restarts={MAX_RESTARTS}",
    ]
    return script.started_by(launch, words)


def elastic_job(launch: TrainingLaunch, script: Script) -> str:
    """Return the job; a node asks for the memory that the plan counts on the host for its GPUs, and may take more."""
    gpus = {"nvidia.com/gpu": launch.processes_per_node}
    memory = -(-launch.plan.memory.host_bytes * launch.processes_per_node // MIB)
    requests = ({"memory": f"{memory}Mi"} if memory else {}) | gpus
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["/bin/bash", "-c", _command(launch, script)],
        "resources": {"requests": requests, "limits": gpus},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # noqa: S108  where processes share it
    }
    volume = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
    worker = {
        "replicas": launch.nodes,
        "restartCount": MAX_RESTARTS,
        "autoScale": script.is_elastic(launch),
        "template": {"spec": {"restartPolicy": "Never", "containers": [container], "volumes": [volume]}},
    }
    return yaml_text(
        {
            "apiVersion": "elastic.iml.github.io/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": JOB_NAME, "namespace": NAMESPACE},
            "spec": {
                "distributionStrategy": "AllreduceStrategy",
                "optimizeMode": "single-job",
                "replicaSpecs": {"worker": worker},
            },
        }
    )

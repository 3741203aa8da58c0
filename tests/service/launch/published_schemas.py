"""Manifests checked against what their kinds' projects publish.

Kubernetes' own kinds: the JSON schemas of kubernetes-validate. Kubeflow's and JobSet's: the models that Kubeflow
generates from its resources' schemas (kubeflow-training, kubeflow-trainer-api); what a model of the latter does not
know is lost on the way through it, and so told.
LeaderWorkerSet and KServe publish none that install here: their fields are listed below, from
leaderworkerset_types.go and the InferenceService of KServe's own SDK 0.21; what is in their pods is Kubernetes' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KUBERNETES_VERSION = "1.37"
LEADER_WORKER_SET = {"replicas", "leaderWorkerTemplate", "rolloutStrategy", "startupPolicy", "networkConfig"}
LEADER_WORKER_TEMPLATE = {
    "leaderTemplate", "workerTemplate", "size", "restartPolicy", "subGroupPolicy", "volumeClaimTemplates",
    "persistentVolumeClaimRetentionPolicy", "maxGroupRestarts",
}  # fmt: skip
RESTART_POLICIES = {"Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"}
# V1beta1ComponentExtensionSpec: what a predictor has beside the pod's own fields.
PREDICTOR = {
    "minReplicas", "maxReplicas", "scaleTarget", "scaleMetric", "containerConcurrency", "timeout",
    "canaryTrafficPercent", "logger", "batcher", "labels", "annotations", "deploymentStrategy", "autoScaling",
}  # fmt: skip


class NotOfItsKind(Exception):
    """The manifest has a field that its kind does not know, or one of the wrong form."""


def check(document: Mapping[str, Any]) -> None:
    """Raise NotOfItsKind where the document is not what its kind publishes."""
    group = str(document["apiVersion"]).rpartition("/")[0]
    checks = {
        "kubeflow.org": _check_pytorch_job,
        "trainer.kubeflow.org": _check_trainer,
        "jobset.x-k8s.io": _check_trainer,
        "leaderworkerset.x-k8s.io": _check_leader_worker_set,
        "serving.kserve.io": _check_inference_service,
    }
    checks.get(group, check_kubernetes)(document)


def check_kubernetes(document: Mapping[str, Any]) -> None:
    """Raise NotOfItsKind where an object of Kubernetes' own does not follow its schema, unknown fields included."""
    import kubernetes_validate

    try:
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise NotOfItsKind(f"{list(error.path)}: {error.message}") from error


def _check_pod(template: Mapping[str, Any]) -> None:
    metadata = {"name": "pod", **template.get("metadata", {})}
    check_kubernetes({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})


def _check_pytorch_job(document: Mapping[str, Any]) -> None:
    from kubeflow.training import models

    spec = document["spec"]
    unknown = spec.keys() - set(models.KubeflowOrgV1PyTorchJobSpec.attribute_map.values())
    for name, replicas in spec["pytorchReplicaSpecs"].items():
        unknown |= {name} - {"Master", "Worker"}
        unknown |= replicas.keys() - set(models.KubeflowOrgV1ReplicaSpec.attribute_map.values())
        _check_pod(replicas["template"])
    if unknown:
        raise NotOfItsKind(f"not of a PyTorchJob: {unknown}")


def _check_trainer(document: Mapping[str, Any]) -> None:
    from kubeflow_trainer_api import models

    model = {"TrainJob": models.TrainerV1alpha1TrainJob, "JobSet": models.JobsetV1alpha2JobSet}[document["kind"]]
    try:
        read = model.from_dict(document).to_dict()
    except ValueError as error:
        raise NotOfItsKind(str(error)) from error
    if read != document:
        raise NotOfItsKind(f"a field is not of a {document['kind']}: {read} is left of {document}")


def _check_leader_worker_set(document: Mapping[str, Any]) -> None:
    spec = document["spec"]
    template = spec["leaderWorkerTemplate"]
    unknown = (spec.keys() - LEADER_WORKER_SET) | (template.keys() - LEADER_WORKER_TEMPLATE)
    if unknown or template["restartPolicy"] not in RESTART_POLICIES or not isinstance(template["size"], int):
        raise NotOfItsKind(f"not of a LeaderWorkerSet: {unknown}")
    for pods in ("leaderTemplate", "workerTemplate"):
        _check_pod(template[pods])


def _check_inference_service(document: Mapping[str, Any]) -> None:
    predictor = document["spec"]["predictor"]
    if document["spec"].keys() - {"predictor", "transformer", "explainer"}:
        raise NotOfItsKind("not of an InferenceService")
    _check_pod({"spec": {name: part for name, part in predictor.items() if name not in PREDICTOR}})

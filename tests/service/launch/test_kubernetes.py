"""Manifests: of their kinds, with the plan's GPUs, and known to the admission webhook as what was planned."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from plimsoll.planners.catalogue import catalogue
from plimsoll.service.admission.judge import AdmissionService
from plimsoll.service.admission.policy import Policies
from plimsoll.service.admission.review import Answer, read_review
from plimsoll.service.admission.sizing import Sizer
from plimsoll.service.artifacts.serving import serving_artifacts
from plimsoll.service.ground.settings import Settings
from plimsoll.service.launch.kubernetes import Placement, in_queue, workload_name
from plimsoll.service.launch.kubernetes_training import training_manifests
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.workloads.objects.gpus import GPU_RESOURCES, gpu_demand, product_selector
from plimsoll.service.workloads.objects.workloads import pod_group
from tests.service.admission.reviews import a_review
from tests.service.engines.serving_plans import CHECKPOINT, hardware, placement, serving_plan
from tests.service.engines.serving_plans import PLAN_ID as PLAN
from tests.service.launch.published_schemas import NotOfItsKind, check
from tests.service.launch.training_layouts import layout

SERVING = {
    "vllm": {"data_parallel": 2, "tensor_parallel": 2},
    "sglang": {"tensor_parallel": 2, "attention_data_parallel": 2, "expert_parallel": 4},
    "tensorrt-llm": {"attention_data_parallel": 2},
    "transformers": {"tensor_parallel": 2},
}
WIDE = {"tensor_parallel": 8, "pipeline_parallel": 2, "data_parallel": 2}


def serving_manifests() -> Iterator[tuple[str, str, Any]]:
    """Yield each engine's manifests with the layout that was planned."""
    for engine, degrees in SERVING.items():
        yield from _made_of(engine, degrees)
    yield from _made_of("vllm", WIDE)
    yield from _made_of("sglang", WIDE)


def _made_of(engine: str, degrees: dict[str, int]) -> Iterator[tuple[str, str, Any]]:
    plan = serving_plan(engine=engine, layout=degrees)
    made = serving_artifacts(CHECKPOINT, plan, hardware(), placement(), fits=True).files
    for name in ("deployment", "inferenceservice", "leaderworkerset"):
        if name in made:
            yield f"{engine}-{name}", made[name], plan.layout


def training_manifests_of(gpus: int) -> dict[str, str]:
    return training_manifests("org/tiny", layout(gpus), hardware(), placement())


def every_manifest() -> list[Any]:
    cases = list(serving_manifests())
    for gpus in (1, 8, 16):
        cases += [(f"{name}-{gpus}", text, layout(gpus)) for name, text in training_manifests_of(gpus).items()]
    return [pytest.param(text, planned, id=name) for name, text, planned in cases]


MANIFESTS = every_manifest()


@pytest.mark.parametrize(("text", "planned"), MANIFESTS)
def test_a_manifest_is_of_its_kind(text: str, planned: Any):
    for document in yaml.safe_load_all(text):
        check(document)


@pytest.mark.parametrize("kind", ["Deployment", "PyTorchJob", "TrainJob", "JobSet", "LeaderWorkerSet"])
def test_a_field_that_a_kind_lacks_would_be_found(kind: str):
    made = [document for case in MANIFESTS for document in yaml.safe_load_all(case.values[0])]
    document = copy.deepcopy(next(document for document in made if document["kind"] == kind))
    document["spec"]["replicaz"] = 1
    with pytest.raises(NotOfItsKind):
        check(document)


def judge(gpus: int, kind: str, layout: dict[str, Any], model: str = "org/tiny") -> AdmissionService:
    """Return the webhook's judge with one plan on record."""
    known = catalogue()
    stored = SimpleNamespace(
        plan_id=PLAN, gpus=gpus, gpu="h100-sxm-80gb", fits=True, verdict="fits", summary="Fits.", kind=kind,
        answer=json.dumps({"plan": {"layout": layout}}), model=model,
    )  # fmt: skip

    class Plans:
        async def get(self, plan_id: str) -> Any:
            assert plan_id == PLAN
            return stored

    return AdmissionService(
        answers=Sizer(ModelResolver(known, Settings()), known), plans=Plans(), catalogue=known, policies=Policies(None)
    )


async def reviewed(text: str, planned: Any, *, fewer: int = 0) -> Answer:
    document = list(yaml.safe_load_all(text))[-1]
    _take_away(document, fewer)
    kind = "infer" if document["kind"] in SERVING_KINDS else "train"
    review = read_review(a_review(document["kind"], document))
    return await judge(planned.gpus, kind, dataclasses.asdict(planned)).review(review)


SERVING_KINDS = ("Deployment", "InferenceService", "LeaderWorkerSet")


def _take_away(value: Any, fewer: int) -> None:
    """Take that many GPUs from every container."""
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _take_away(part, fewer)
    for name in GPU_RESOURCES if isinstance(value, dict) else ():
        if name in value:
            value[name] -= fewer


@pytest.mark.parametrize(("text", "planned"), MANIFESTS)
async def test_a_manifest_is_admitted_as_its_plan(text: str, planned: Any):
    answer = await reviewed(text, planned)
    assert (answer.is_allowed, answer.is_judged, answer.warnings) == (True, True, ())
    assert f"Plan {PLAN}" in answer.audit_annotations["plimsoll"]


@pytest.mark.parametrize(("text", "planned"), [case for case in MANIFESTS if case.values[1].gpus > 1])
async def test_a_manifest_with_one_gpu_fewer_a_pod_is_refused(text: str, planned: Any):
    answer = await reviewed(text, planned, fewer=1)
    assert not answer.is_allowed
    assert "GPUs" in answer.message


@pytest.mark.parametrize("gpu", [gpu.id for gpu in catalogue().gpus])
def test_the_selector_of_a_gpu_names_it_again(gpu: str):
    known = catalogue()
    selector = product_selector(known.gpu(gpu))
    group = pod_group("", "Pod", {"spec": {"nodeSelector": selector, "containers": [{"resources": {}}]}})
    assert gpu_demand(group.members[0], group.containers[0], known).gpu == (gpu if selector else None)


def test_amds_gpus_are_asked_for_by_their_own_resource_and_label():
    known = catalogue().gpu("mi300x-192gb")
    made = training_manifests("org/tiny", layout(8), hardware("mi300x-192gb"), Placement(plan_id=PLAN, gpu=known))
    pod = yaml.safe_load(made["jobset"])["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"amd.com/gpu": 8}
    assert pod["nodeSelector"] == {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}


def test_an_engine_without_an_image_for_the_gpu_has_no_manifest():
    made = serving_artifacts(
        CHECKPOINT, serving_plan(engine="sglang"), hardware("mi300x"), placement("mi300x"), fits=True
    ).files
    assert list(made) == ["sglang"]


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob", "jobset"])
def test_a_queue_of_kueues_is_named_where_it_is_asked_for(name: str):
    text = training_manifests_of(8)[name]
    queued = in_queue(text, "team")
    assert queued.startswith(text.splitlines()[0])
    before, after = yaml.safe_load(text), yaml.safe_load(queued)
    assert after["metadata"]["labels"].pop("kueue.x-k8s.io/queue-name") == "team"
    assert after == before


@pytest.mark.parametrize("text", ["torchrun train.py", "a: [", "kind: ConfigMap", "#!/bin/bash\nsrun x"])
def test_what_is_no_manifest_waits_in_no_queue(text: str):
    assert in_queue(text, "team") is None


def test_processes_of_several_gpus_share_memory():
    one, several = (yaml.safe_load(training_manifests_of(gpus)["pytorchjob"])["spec"] for gpus in (1, 8))
    assert "volumes" not in one["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    assert several["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["volumes"][0]["emptyDir"] == {
        "medium": "Memory"
    }


def test_gpus_that_do_not_fill_their_nodes_have_no_manifest():
    assert training_manifests_of(12) == {}


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3-1-8b-01234567"),
        ("org/" + "x" * 60, "x" * 30 + "-01234567"),
        ("org/_._", "model-01234567"),
    ],
)
def test_a_workloads_name_is_a_dns_label(model: str, name: str):
    assert workload_name(model, PLAN) == name

"""The webhook's match conditions, evaluated by CEL's own implementation (cel-expr, the C++ one under Python)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from cel_expr_python import cel

from plimsoll.service.admission.kinds import READ_KINDS
from plimsoll.service.admission.review import read_review
from tests.api.admission_cases import body_of, cases
from tests.service.admission.reviews import KINDS, a_container, a_review, an_object
from tests.service.admission.test_judge import service

ROOT = Path(__file__).parents[2]
RECORDED = sorted((ROOT / "tests" / "service" / "admission" / "recorded").glob("*-CREATE.json"))
WEBHOOK = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "webhook.yaml").read_text())["webhooks"][0]
# What Kubernetes declares for match conditions that is used here; objects are of no one type.
ENVIRONMENT = cel.NewEnv(variables={"object": cel.Type.DYN, "request": cel.Type.DYN})
CONDITIONS = {entry["name"]: ENVIRONMENT.compile(entry["expression"]) for entry in WEBHOOK["matchConditions"]}
OWNED, GPUS = CONDITIONS


def is_met(name: str, review: dict[str, Any]) -> bool:
    request = review["request"]
    # An API server sends no object without metadata: it has given it a name.
    manifest = {"metadata": {}, **request["object"]}
    value = CONDITIONS[name].eval(data={"object": manifest, "request": request})
    # An error would skip the webhook, or refuse the object, as the failure policy says.
    assert value.type() == cel.Type.BOOL, value.value()
    return bool(value.value())


def is_asked(review: dict[str, Any]) -> bool:
    return all(is_met(name, review) for name in CONDITIONS)


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_is_of_the_type_that_kubernetes_takes(name: str):
    assert CONDITIONS[name].return_type() == cel.Type.BOOL


@pytest.mark.parametrize("kind", KINDS)
def test_a_workload_with_gpus_is_asked_about(kind: str):
    assert is_asked(a_review(kind, an_object(kind, a_container())))


@pytest.mark.parametrize(
    ("resources", "is_asked_about"),
    [
        ({"limits": {"nvidia.com/gpu": "1"}}, True),
        ({"limits": {"nvidia.com/mig-1g.10gb": "1"}}, True),
        ({"limits": {"amd.com/gpu": "1", "cpu": "4"}}, True),
        ({"claims": [{"name": "gpu"}]}, True),
        ({"limits": {"cpu": "4", "memory": "1Gi"}}, False),
        ({"requests": {"cpu": "4"}}, False),
        ({}, False),
    ],
)
def test_of_pods_only_those_with_gpus_are_asked_about(resources: dict[str, Any], is_asked_about: bool):
    assert is_met(GPUS, a_review("Pod", an_object("Pod", a_container(resources=resources)))) is is_asked_about


def test_a_second_container_counts_and_one_without_resources_breaks_nothing():
    pod = an_object("Pod", a_container(gpus=0))
    del pod["spec"]["containers"][0]["resources"]
    pod["spec"]["containers"].append(a_container())
    assert is_met(GPUS, a_review("Pod", pod))


@pytest.mark.parametrize(
    ("owners", "is_asked_about"),
    [
        (None, True),
        ([], True),
        ([{"kind": "Node", "name": "n"}], True),
        ([{"kind": "Workflow"}], True),
        *(([{"kind": kind}], False) for kind in ("ReplicaSet", *sorted({kind for _group, kind in READ_KINDS}))),
        ([{"kind": "Workflow"}, {"kind": "Job"}], False),
    ],
)
def test_what_is_made_by_what_was_reviewed_is_not_asked_about(owners: Any, is_asked_about: bool):
    pod = an_object("Pod", a_container())
    if owners is not None:
        pod["metadata"]["ownerReferences"] = owners
    assert is_met(OWNED, a_review("Pod", pod)) is is_asked_about


VALID = {name: json.loads(body_of(case)) for name, case in cases("valid").items()}
SENT = {
    **{name: review for name, review in VALID.items() if review["request"]["operation"] in ("CREATE", "UPDATE")},
    **{file.stem: json.loads(file.read_text()) for file in RECORDED},
}


@pytest.mark.parametrize("name", SENT)
async def test_what_is_not_asked_about_would_pass_without_a_word(name: str):
    review = SENT[name]
    if not is_asked(review):
        answer = await service().review(read_review(review))
        assert (answer.is_allowed, answer.warnings) == (True, ())

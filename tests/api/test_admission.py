from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.admission_cases import body_of, cases
from tests.service.admission.reviews import a_container, a_review, an_object

FOLDER = Path(__file__).parents[1] / "service" / "admission" / "recorded"
RECORDED = {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}
LARGE = ("--model", "Qwen/Qwen2.5-72B-Instruct", "--tensor-parallel-size", "2")


@pytest.mark.parametrize("name", RECORDED)
async def test_recorded_reviews_are_answered_to_the_letter(client: httpx.AsyncClient, name: str):
    review = RECORDED[name]
    response = await client.post("/admission/validate?timeout=5s", json=review)
    body = response.json()
    assert (response.status_code, body["apiVersion"], body["kind"]) == (200, "admission.k8s.io/v1", "AdmissionReview")
    assert (body["response"]["uid"], body["response"]["allowed"]) == (review["request"]["uid"], True)


async def test_a_deployment_that_cannot_fit_is_refused_with_the_reason(client: httpx.AsyncClient):
    manifest = an_object("Deployment", a_container(*LARGE, gpus=2))
    response = await client.post("/admission/validate", json=a_review("Deployment", manifest, dryRun=True))
    answer = response.json()["response"]
    assert (response.status_code, answer["allowed"], answer["status"]["code"]) == (200, False, 403)
    assert "67.7 GiB of weights" in answer["status"]["message"]


async def counted(client: httpx.AsyncClient) -> Counter[str]:
    """Return how many reviews were answered until now, by the metric's labels."""
    told = (await client.get("/metrics")).text
    found = re.findall(r"^plimsoll_admission_reviews_total{(.*)} (.*)$", told, re.M)
    return Counter({labels: int(float(count)) for labels, count in found})


@pytest.mark.parametrize(
    ("container", "labels"),
    [
        (a_container(*LARGE, gpus=2), 'decision="refused",judged="yes"'),
        (a_container(gpus=0), 'decision="allowed",judged="yes"'),
        (a_container("--help", gpus=2), 'decision="allowed",judged="no"'),
    ],
)
async def test_a_review_is_counted_by_what_was_decided_and_what_was_judged(
    client: httpx.AsyncClient, container: dict[str, Any], labels: str
):
    before = await counted(client)
    await client.post("/admission/validate", json=a_review("Pod", an_object("Pod", container)))
    assert await counted(client) - before == Counter({labels: 1})


async def test_nothing_is_stored_by_a_review(client: httpx.AsyncClient):
    before = (await client.get("/plans")).json()
    manifest = an_object("Deployment", a_container(*LARGE, "--max-model-len", "4096", gpus=2))
    await client.post("/admission/validate", json=a_review("Deployment", manifest))
    assert (await client.get("/plans")).json() == before


VALID, HOSTILE, MALFORMED = cases("valid"), cases("hostile"), cases("malformed")
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("case", [*VALID.values(), *HOSTILE.values()], ids=[*VALID, *HOSTILE])
async def test_a_review_is_answered(client: httpx.AsyncClient, case: dict[str, Any]):
    body = body_of(case)
    response = await client.post("/admission/validate", content=body, headers=JSON)
    answer = response.json()["response"]
    warnings = answer.get("warnings", [])
    assert (response.status_code, answer["uid"]) == (200, json.loads(body)["request"]["uid"])
    assert answer["allowed"] is case["allowed"]
    assert case.get("told", "") in " ".join((answer.get("status", {}).get("message", ""), *warnings))
    assert all(len(warning) < 256 and warning.isascii() and warning.isprintable() for warning in warnings)
    assert bool(warnings) == (case["allowed"] and "told" in case)


@pytest.mark.parametrize("case", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_review_is_a_problem_and_no_silent_consent(client: httpx.AsyncClient, case: dict[str, Any]):
    response = await client.post("/admission/validate", content=body_of(case), headers=JSON)
    expected = (case["status"], "application/problem+json")
    assert (response.status_code, response.headers["content-type"]) == expected


@pytest.mark.parametrize("seconds", ["10s", "500ms", "0s", "soon", ""])
async def test_any_timeout_is_answered(client: httpx.AsyncClient, seconds: str):
    response = await client.post(f"/admission/validate?timeout={seconds}", json=a_review("ConfigMap", {}))
    assert response.json()["response"]["allowed"] is True

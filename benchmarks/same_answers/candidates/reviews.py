"""Admission reviews: the manifests and reviews that the tests keep as files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.same_answers.candidates.parts import Candidate

MANIFESTS = Path("tests/service/admission/manifests")
RECORDED = Path("tests/service/admission/recorded")
REVIEWS = Path("tests/api/admission_reviews")
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


def candidates() -> Iterator[Candidate]:
    """Yield reviews."""
    for file in sorted(MANIFESTS.glob("*.yaml")):
        for text in file.read_text(encoding="utf-8").split("\n---\n"):
            manifest = yaml.safe_load(text.split("\n===\n")[-1])
            yield _review(f"review of {file.stem}: {manifest['metadata']['name']}", manifest)
    for file in sorted(RECORDED.glob("*.json")):
        yield {**_sent(f"review as recorded: {file.stem}"), "text": file.read_text(encoding="utf-8")}


def of_plan(plan: Candidate) -> Iterator[Candidate]:
    """Yield workloads that name a stored plan, whose answer comes first."""
    for gpus in (1, 8):
        container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        manifest = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "planned", "annotations": {"plimsoll.dev/plan-id": "{plan_id}"}},
            "spec": {"template": {"spec": {"containers": [container]}}},
        }
        yield {**_review("review of a stored plan", manifest), "after": plan}


def _review(kind: str, manifest: dict[str, Any]) -> Candidate:
    group, _, version = manifest["apiVersion"].rpartition("/")
    request = {
        "uid": UID,
        "kind": {"group": group, "version": version, "kind": manifest["kind"]},
        "operation": "CREATE",
        "name": manifest["metadata"].get("name", ""),
        "namespace": "default",
        "object": manifest,
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return {**_sent(kind), "body": body}


def _sent(kind: str) -> Candidate:
    return {"kind": kind, "method": "POST", "path": "/admission/validate"}

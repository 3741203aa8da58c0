"""Workloads as public charts and guides write them: the first line that names a verdict says which, and in what words.

Objects that belong together stand in one document, `===` between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from plimsoll.planners.catalogue import catalogue
from plimsoll.service.admission import judge
from plimsoll.service.admission.judge import AdmissionService
from plimsoll.service.admission.kinds import READ_KINDS
from plimsoll.service.admission.policy import Policies
from plimsoll.service.admission.review import Answer, Review
from plimsoll.service.admission.sizing import Sizer
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.workloads.objects.training_runtimes import GivenRuntimes
from tests.service.admission.test_judge import Plans

FOLDER = Path(__file__).parent / "manifests"
VERDICT = re.compile(r"^# (fits|warned|refused|unjudged)(?:: (.+))?$", re.MULTILINE)
LEAST_MANIFESTS = 60
PATIENCE_SECONDS = 600.0


def documents() -> Iterator[Any]:
    for file in sorted(FOLDER.glob("*.yaml")):
        for text in file.read_text().split("\n---\n"):
            objects = [yaml.safe_load(part) for part in text.split("\n===\n")]
            yield pytest.param(text, objects, id=f"{file.stem}-{objects[-1]['metadata']['name']}")


ALL = list(documents())


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing run out of time: what a manifest is told does not depend on the machine."""
    monkeypatch.setattr(judge, "LONGEST_SECONDS", PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def sizer() -> Sizer:
    return Sizer(ModelResolver(catalogue(), Settings()), catalogue())


def a_judge(sizer: Sizer, objects: list[dict[str, Any]]) -> AdmissionService:
    runtimes = {("ClusterTrainingRuntime", "", each["metadata"]["name"]): each for each in objects}
    return AdmissionService(
        answers=sizer,
        plans=Plans(),
        catalogue=catalogue(),
        policies=Policies(None),
        runtimes=GivenRuntimes(runtimes),
    )


def a_creation(manifest: dict[str, Any]) -> Review:
    group = manifest["apiVersion"].rpartition("/")[0]
    assert (group, manifest["kind"]) in READ_KINDS
    return Review(
        uid="1", operation="CREATE", group=group, kind=manifest["kind"], name="x", namespace="default", object=manifest,
        old_object=None, is_dry_run=False,
    )  # fmt: skip


def verdict(answer: Answer) -> str:
    if not answer.is_allowed:
        return "refused"
    if not answer.is_judged:
        return "unjudged"
    return "warned" if answer.warnings else "fits"


@pytest.mark.parametrize(("text", "objects"), ALL)
async def test_a_published_manifest_is_judged_as_its_comment_says(sizer, text: str, objects: list[dict[str, Any]]):
    match = VERDICT.search(text)
    assert match is not None
    answer = await a_judge(sizer, objects[:-1]).review(a_creation(objects[-1]), seconds=PATIENCE_SECONDS)
    said = " ".join((answer.message, *answer.warnings))
    assert (verdict(answer), (match[2] or "") in said) == (match[1], True), said


def test_there_are_sixty_of_them():
    assert len(ALL) >= LEAST_MANIFESTS

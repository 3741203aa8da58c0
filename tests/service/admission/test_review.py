from __future__ import annotations

import json
from pathlib import Path

import pytest

from plimsoll.service.admission.review import Answer, InvalidReview, answered, read_review
from tests.service.admission.reviews import a_review

RECORDED = sorted(Path(__file__).parent.glob("recorded/*.json"))


def of_kind(kind):
    review = a_review("Pod", {})
    review["request"]["kind"] = kind
    return review


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_reviews_recorded_from_an_api_server_are_read(file: Path):
    body = json.loads(file.read_text())
    review = read_review(body)
    assert review.uid == body["request"]["uid"]
    assert f"{review.kind}-{review.operation}" in file.stem
    assert (review.object is None) == (review.operation == "DELETE")


def test_all_recorded_reviews_are_there():
    assert len(RECORDED) == 4


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (None, ""),
        ([], ""),
        ({}, "/apiVersion"),
        ({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}, "/apiVersion"),
        ({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}, "/request"),
        (a_review("Pod", {}, uid=""), "/request/uid"),
        (a_review("Pod", {}, uid="u" * 129), "/request/uid"),
        (a_review("Pod", {}, uid=7), "/request/uid"),
        (a_review("Pod", {}, operation="PATCH"), "/request/operation"),
        (of_kind("Pod"), "/request/kind"),
        (of_kind({"group": "", "kind": 1}), "/request/kind/kind"),
        (a_review("Pod", [], operation="CREATE"), "/request/object"),
        (a_review("Pod", {}, oldObject="x"), "/request/oldObject"),
        (a_review("Pod", {}, dryRun="yes"), "/request/dryRun"),
        (a_review("Pod", {}, namespace=3), "/request/namespace"),
    ],
)
def test_what_is_no_review_is_refused_with_the_place(body, pointer):
    with pytest.raises(InvalidReview) as raised:
        read_review(body)
    assert raised.value.pointer == pointer


def test_a_refusal_carries_its_message_and_the_uid():
    body = answered("u-1", Answer(is_allowed=False, message="too large", audit_annotations={"plimsoll": "x"}))
    assert body["response"] == {
        "uid": "u-1",
        "allowed": False,
        "status": {"status": "Failure", "message": "too large", "reason": "Forbidden", "code": 403},
        "auditAnnotations": {"plimsoll": "x"},
    }


def test_warnings_are_single_lines_below_256_characters_and_4096_together():
    # 17 x 255 = 4,335 characters: the 17th does not go in any more.
    warnings = [f"{number:02d}\n" + "é" * 400 for number in range(17)]
    kept = answered("u", Answer(is_allowed=True, warnings=warnings))["response"]["warnings"]
    assert len(kept) == 16
    assert {len(line) for line in kept} == {255}
    assert all(line.isascii() and "\n" not in line for line in kept)

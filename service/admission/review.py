"""`admission.k8s.io/v1` AdmissionReview, in and out.

Source: k8s.io/api, admission/v1/types.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plimsoll.planners.ground.errors import PlimsollError

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")
MOST_UID_CHARACTERS = 128
# The API server cuts a warning at 256 characters and all of them together at 4,096 (admission/v1/types.go).
MOST_WARNING_CHARACTERS = 255
MOST_WARNINGS_CHARACTERS = 4_096
# What is refused is the workload's own mistake: the code that `kubectl` shows beside the message.
REFUSED_STATUS = 403


class InvalidReview(PlimsollError):
    """The body is no AdmissionReview that can be answered."""

    code = "invalid-review"


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What is asked; `object` is None where the object is being deleted."""

    uid: str
    operation: str
    group: str
    kind: str
    name: str
    namespace: str
    object: Mapping[str, Any] | None
    old_object: Mapping[str, Any] | None
    is_dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is answered: whether it may be admitted, why not, and what people should know.

    `is_judged` is false where something was missing, so that it was let through, or refused, unseen.
    """

    is_allowed: bool
    is_judged: bool = True
    message: str = ""
    warnings: Sequence[str] = ()
    audit_annotations: Mapping[str, str] = field(default_factory=dict)


def read_review(body: Any) -> Review:
    """Return the review of a request's body; raises InvalidReview with a pointer to what is wrong."""
    review = _mapping(body, "")
    if review.get("apiVersion") != API_VERSION or review.get("kind") != KIND:
        raise InvalidReview(f"This is no {KIND} of {API_VERSION}.", pointer="/apiVersion")
    request = _mapping(review.get("request"), "/request")
    uid = _text(request.get("uid"), "/request/uid")
    if not uid or len(uid) > MOST_UID_CHARACTERS:
        raise InvalidReview(f"must have 1 to {MOST_UID_CHARACTERS} characters.", pointer="/request/uid")
    operation = _text(request.get("operation"), "/request/operation")
    if operation not in OPERATIONS:
        raise InvalidReview(f"is none of {', '.join(OPERATIONS)}.", pointer="/request/operation")
    kind = _mapping(request.get("kind"), "/request/kind")
    dry_run = request.get("dryRun")
    if dry_run is not None and not isinstance(dry_run, bool):
        raise InvalidReview("must be true or false.", pointer="/request/dryRun")
    return Review(
        uid=uid,
        operation=operation,
        group=_text(kind.get("group", ""), "/request/kind/group"),
        kind=_text(kind.get("kind"), "/request/kind/kind"),
        name=_text(request.get("name") or "", "/request/name"),
        namespace=_text(request.get("namespace") or "", "/request/namespace"),
        object=_optional_mapping(request.get("object"), "/request/object"),
        old_object=_optional_mapping(request.get("oldObject"), "/request/oldObject"),
        is_dry_run=bool(dry_run),
    )


def answered(uid: str, answer: Answer) -> dict[str, Any]:
    """Return the AdmissionReview that answers the request `uid`."""
    response: dict[str, Any] = {"uid": uid, "allowed": answer.is_allowed}
    if not answer.is_allowed:
        response["status"] = {
            "status": "Failure",
            "message": answer.message,
            "reason": "Forbidden",
            "code": REFUSED_STATUS,
        }
    if answer.warnings:
        response["warnings"] = _within_limits(answer.warnings)
    if answer.audit_annotations:
        response["auditAnnotations"] = dict(answer.audit_annotations)
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def _within_limits(warnings: Sequence[str]) -> list[str]:
    """Return the warnings as HTTP headers can carry them: one line, each and all together short enough."""
    kept: list[str] = []
    left = MOST_WARNINGS_CHARACTERS
    for warning in dict.fromkeys(warnings):
        line = " ".join(warning.encode("ascii", "replace").decode().split())
        if len(line) > MOST_WARNING_CHARACTERS:
            line = line[: MOST_WARNING_CHARACTERS - 3] + "..."
        if line and len(line) <= left:
            kept.append(line)
            left -= len(line)
    return kept


def _mapping(value: Any, pointer: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidReview("must be an object.", pointer=pointer)
    return value


def _optional_mapping(value: Any, pointer: str) -> Mapping[str, Any] | None:
    return None if value is None else _mapping(value, pointer)


def _text(value: Any, pointer: str) -> str:
    if not isinstance(value, str):
        raise InvalidReview("must be a text.", pointer=pointer)
    return value

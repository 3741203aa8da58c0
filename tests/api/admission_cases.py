"""The AdmissionReviews of `admission_reviews/`, made whole."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "admission_reviews"


def cases(name: str) -> dict[str, dict[str, Any]]:
    """Return a file's cases by name."""
    return dict(yaml.safe_load((FOLDER / f"{name}.yaml").read_text())["cases"])


def body_of(case: dict[str, Any]) -> bytes:
    """Return what is sent for a case."""
    if "body" in case:
        return str(case["body"]).encode()
    review = yaml.safe_load((FOLDER / "base.yaml").read_text())
    review |= case.get("review", {})
    if "kind" in case:
        group, _, version = case["kind"][0].rpartition("/")
        review["request"]["kind"] = {"group": group, "version": version, "kind": case["kind"][1]}
    if isinstance(review["request"], dict):
        parts = {name: case[name] for name in ("operation", "object", "oldObject", "dryRun") if name in case}
        review["request"] |= parts | case.get("request", {})
    return json.dumps(_repeated(copy.deepcopy(review))).encode()


def _repeated(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"repeat", "times"}:
            return value["repeat"] * value["times"]
        return {name: _repeated(part) for name, part in value.items()}
    return [_repeated(part) for part in value] if isinstance(value, list) else value

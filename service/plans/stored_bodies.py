"""Stored answers in today's shape: one place where what earlier versions left out is filled in.

A stored plan keeps the words and the numbers that it was answered with. A field that came later stands for nothing: it
is an empty list, a degree of one, or null; whether a deployment meets what was asked follows from what it said of each.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from plimsoll.service.persistence.records import StoredPlan
from plimsoll.service.plans.answers import InferPlanBody, TrainPlanBody

BODIES: Mapping[str, type] = {"train": TrainPlanBody, "infer": InferPlanBody}
# What came later and is a number that is counted with.
BEFORE: Mapping[str, Any] = {
    "attention_data_parallel": 1,
    "context_all_to_all": 1,
    "context_parallel": 1,
    "decode_context_parallel": 1,
    "expert_parallel": 1,
    "expert_tensor_parallel": 1,
    "secondary_shard_group": 1,
    "virtual_pipeline": 1,
    "nvme_bytes": 0,
    "state_bytes_per_layer": 0,
}


def plan_body(plan: StoredPlan) -> dict[str, Any]:
    """Return a stored plan's answer, whichever version gave it, with every field that today's have."""
    body: dict[str, Any] = _completed(json.loads(plan.answer), BODIES[plan.kind])
    if plan.kind == "infer" and body["meets"] is None:
        asked = (body["meets_concurrency"], body["meets_slo"])
        body["meets"] = body["fits"] and False not in asked
    return body


def in_todays_shape(plan: StoredPlan) -> StoredPlan:
    """Return a stored plan with its answer in today's shape: as it was stored, to the last byte, where it has it."""
    body = plan_body(plan)
    if body == json.loads(plan.answer):
        return plan
    return replace(plan, answer=json.dumps(body, ensure_ascii=False, separators=(",", ":")))


def _completed(value: Any, kind: Any) -> Any:
    """Return a JSON value with the fields that `kind` has and it lacks, all the way down."""
    if isinstance(value, dict) and isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        known = {name: _completed(inner, hints[name]) if name in hints else inner for name, inner in value.items()}
        return known | {name: _nothing(name, hint) for name, hint in hints.items() if name not in value}
    if isinstance(value, dict) and _is_mapping(kind):
        return {name: _completed(inner, get_args(kind)[1]) for name, inner in value.items()}
    if isinstance(value, list) and get_origin(kind) is tuple:
        return [_completed(inner, get_args(kind)[0]) for inner in value]
    if get_origin(kind) in (Union, UnionType):
        for each in get_args(kind):
            if each is not NoneType:
                value = _completed(value, each)
    return value


def _nothing(name: str, kind: Any) -> Any:
    """Return what stands for a field that was not there yet."""
    if name in BEFORE:
        return BEFORE[name]
    if get_origin(kind) is tuple:
        return []
    return {} if _is_mapping(kind) else None


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


@functools.cache
def _hints(kind: type) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}

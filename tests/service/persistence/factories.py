"""Records with defaults, for tests that care for one field."""

from __future__ import annotations

from typing import Any

from plimsoll.service.persistence.records import NewJob, NewMeasurement, Progress, StoredPlan


def a_plan(plan_id: str = "plan-1", **changes: Any) -> StoredPlan:
    fields: dict[str, Any] = {
        "kind": "train",
        "request": {"model": "m"},
        "model_config": None,
        "answer": '{"fits": true}',
        "fits": True,
        "verdict": "fits",
        "summary": "It fits.",
        "model": "meta-llama/Llama-3.1-8B",
        "gpu": "h100-sxm-80gb",
        "gpus": 8,
        "framework": "fsdp2",
        "planner_version": "1",
        "catalogue_revision": "c",
        "calibration_revision": "",
    }
    return StoredPlan(plan_id=plan_id, **(fields | changes))


def a_job(**changes: Any) -> NewJob:
    fields: dict[str, Any] = {"kind": "quantize", "queue": "cpu", "request": {"scheme": "nf4"}}
    return NewJob(**(fields | changes))


def a_measurement(**changes: Any) -> NewMeasurement:
    fields: dict[str, Any] = {
        "plan_id": None,
        "level": "trace",
        "framework": "fsdp2",
        "gpu": "h100-sxm-80gb",
        "model": "m",
        "predicted": {"peak_bytes": 11},
        "measured": {"peak_bytes": 10},
        "relative_error": 0.1,
        "source": "worker-1",
    }
    return NewMeasurement(**(fields | changes))


def some_progress(done: int = 1) -> Progress:
    return Progress(done=done, total=10, unit="layers", message="half way")

"""No id, name or command is ever cut in an answer as text: each is there to be pasted."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import TypeAdapter

from plimsoll.cli.local import Local
from plimsoll.service.models.description import ModelDescription
from plimsoll.service.persistence.records import Job, Page, PlanSummary
from plimsoll.service.text import answers as text_answers
from plimsoll.service.text import catalogue as text_catalogue
from plimsoll.service.text import models as text_models
from tests.api.questions import infer, train

TAIL = "-" + "0123456789abcdef" * 8
COMMAND = "`plimsoll validate 0123456789abcdef0123456789abcdef01234567 --level trace --url http://127.0.0.1:8000`"
# What people copy out of an answer. Verdicts, states and kinds are words that renderers look up.
PASTED = {
    "plan_id", "job_id", "id", "gpu", "model", "name", "next_cursor", "worker", "aliases", "catalogue_revision",
    "what", "framework", "family", "source",
}  # fmt: skip
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def stretched(value: Any, name: str = "") -> Any:
    """Return an answer whose ids end in `TAIL`, and whose sentences hold `COMMAND`."""
    if isinstance(value, dict):
        return {key: stretched(inner, key) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [stretched(inner, name) for inner in value]
    if not isinstance(value, str):
        return value
    if re.search(r"\s", value):
        return f"{value} Ask {COMMAND} about it."
    return value + TAIL if name in PASTED else value


def check(text: str, *, least: int) -> None:
    """Fail where a tail or a command is there in part; `least` of them are there at all."""
    begun = text.count(TAIL[:6])
    assert begun == text.count(TAIL)
    assert text.count(COMMAND[:12]) == text.count(COMMAND)
    assert begun + text.count(COMMAND) >= least


def asked(kind: Any, request: dict[str, Any]) -> dict[str, Any]:
    return Local().plan(kind, request, lambda *_: None)


def plan(kind: Any, request: dict[str, Any]) -> Callable[[], str]:
    return lambda: text_answers.plan_text(stretched(asked(kind, request)))


def plans() -> str:
    plan_of_many = PlanSummary(
        plan_id="p" + TAIL, kind="train", model="meta-llama/Llama-3.1-8B" + TAIL, gpu="h100-sxm-80gb", gpus=1024,
        framework="fsdp2", planner_version="1", catalogue_revision="1", calibration_revision="none", request={},
        fits=True, verdict="tight", summary="Fits.", created_at=WHEN,
    )  # fmt: skip
    return text_answers.plans_text(Page(items=(plan_of_many,), next_cursor="c" + TAIL))


def job(**parts: Any) -> Job:
    return replace(
        Job(
            job_id="j" + TAIL, kind="quantize", state="failed", queue="cpu", priority=0, plan_id=None, request={},
            estimate=None, progress=None, attempts=1, max_attempts=3, cancel_requested=False, worker="w" + TAIL,
            created_at=WHEN, started_at=WHEN, finished_at=WHEN, result=None, error=None, queue_job_id=1,
        ),
        **parts,
    )  # fmt: skip


def one_job() -> str:
    fields = {name: getattr(job(), name) for name in Job.__dataclass_fields__}
    return text_answers.job_text({**fields, "error": {"detail": f"Ask {COMMAND} about it."}})


def jobs() -> str:
    return text_answers.jobs_text(Page(items=(job(),), next_cursor="c" + TAIL))


def model() -> str:
    described = TypeAdapter(ModelDescription).validate_python(Local().describe("llama-3.1-8b"))
    return text_models.model_text(
        replace(described, id=described.id + TAIL, aliases=(f"a{TAIL}",), assumptions=(f"Ask {COMMAND} about it.",))
    )


ACCURACY = {
    "measurements": 1,
    "items": [
        {
            "level": "run", "gpu": "h100-sxm-80gb", "framework": "fsdp2", "family": "llama", "count": 1,
            "mean_relative_error": 0.1, "median_absolute_relative_error": 0.1, "p90_absolute_relative_error": 0.1,
            "worst_absolute_relative_error": 0.1,
        }
    ],
}  # fmt: skip
CLUSTER = {"gpu": "h100-sxm-80gb", "gpus": 16, "usd_per_gpu_hour": 2.0}
TEXTS: dict[str, list[Callable[[], str]]] = {
    "plan_text": [
        plan("train", train(hardware=CLUSTER, compare=[{"tensor_parallel": 3}, {"data_parallel": 2}])),
        plan("train", train(hardware={"fleet": [CLUSTER, {"gpu": "a100-sxm-80gb", "gpus": 8}]})),
        plan("infer", infer(hardware={"fleet": [CLUSTER, {"gpu": "a100-sxm-80gb"}]}, serving={"concurrency": 8})),
    ],
    "plans_text": [plans],
    "job_text": [one_job],
    "jobs_text": [jobs],
    "models_text": [lambda: text_catalogue.models_text(stretched(Local().models()))],
    "hardware_text": [lambda: text_catalogue.hardware_text(stretched(Local().hardware()))],
    "gpu_text": [lambda: text_catalogue.gpu_text(stretched(Local().gpu("h100")))],
    "accuracy_text": [lambda: text_catalogue.accuracy_text(stretched(ACCURACY))],
    "model_text": [model],
}


def test_every_text_is_tried():
    rendering = {
        name
        for module in (text_answers, text_catalogue, text_models)
        for name, found in inspect.getmembers(module, inspect.isfunction)
        if name.endswith("_text") and found.__module__ == module.__name__ and not name.startswith("_")
    }
    assert rendering == set(TEXTS)


@pytest.mark.parametrize("render", [pytest.param(text, id=name) for name, texts in TEXTS.items() for text in texts])
def test_what_is_pasted_is_whole(render: Callable[[], str]):
    check(render(), least=2)

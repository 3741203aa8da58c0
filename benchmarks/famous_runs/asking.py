"""A run asked of the service in this process: as it ran, and with its layout left open."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import TypeAdapter

from benchmarks.accuracy.asking import Refused, answered
from benchmarks.famous_runs.record import FamousRun
from benchmarks.famous_runs.step_times import published_step_seconds
from plimsoll.service.ground.settings import Settings
from plimsoll.service.jobs.in_process import InProcess
from plimsoll.service.requests.models import ModelRef

ANY = "any"
# What a request may fix of a layout beside its degrees.
LAYOUT_OF_JOB = ("micro_batch_size", "recompute", "activation_offload", "fused_cross_entropy")
# Launch files go by the programs that read them.
OWN_LAUNCH_FILES = {"fsdp2": "torchtitan"}
ItemBytes: TypeAlias = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What the service answered of one request, as far as a run is compared with it."""

    fits: bool
    verdict: str
    layout: Mapping[str, Any]
    step_seconds: float
    low_seconds: float
    high_seconds: float
    utilization_fraction: float
    peak_bytes: int
    peak_low_bytes: int
    peak_high_bytes: int
    limit_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    item_bytes: ItemBytes
    why_no_launch_file: tuple[str, ...]


Answer: TypeAlias = Planned | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRun:
    """A run with its published step time and three answers: as it ran, open under its framework, open under any."""

    run: FamousRun
    published_seconds: float | None
    as_ran: Answer
    open_layout: Answer
    open_framework: Answer


def asked_runs(runs: Iterable[FamousRun]) -> Iterator[AskedRun]:
    """Ask one service about every run."""
    service = InProcess(Settings())
    with asyncio.Runner() as runner:

        def answer(body: Mapping[str, Any]) -> Answer:
            return runner.run(_answer(service, body))

        for run in runs:
            model = service.models.resolve(_MODEL.validate_python(run.request["model"]))
            yield AskedRun(
                run=run,
                published_seconds=published_step_seconds(run, model.spec),
                as_ran=answer(run.request),
                open_layout=answer(open_request(run.request, str(run.request["framework"]))),
                open_framework=answer(open_request(run.request, ANY)),
            )


def open_request(request: Mapping[str, Any], framework: str) -> dict[str, Any]:
    """Return a request for the same job on the same GPUs with nothing of its layout fixed."""
    body = copy.deepcopy(dict(request))
    training = {name: value for name, value in body["training"].items() if name not in LAYOUT_OF_JOB}
    # Kernels and versions are a framework's own.
    if framework != request["framework"]:
        training.pop("kernels", None)
        body.pop("framework_version", None)
    return {**body, "framework": framework, "training": training, "layout": {}}


def own_launch_file(framework: str) -> str:
    """Return the name of a framework's own launch file among a plan's."""
    return OWN_LAUNCH_FILES.get(framework, framework)


_MODEL: TypeAdapter[Any] = TypeAdapter(ModelRef)


async def _answer(service: InProcess, body: Mapping[str, Any]) -> Answer:
    """Return what `POST /plan/train` answers."""
    answer = await answered(service, body)
    return answer if isinstance(answer, Refused) else _planned(answer)


def _planned(body: Mapping[str, Any]) -> Planned:
    plan = body["plan"]
    memory, step = plan["memory"], plan["step"]
    return Planned(
        fits=body["fits"],
        verdict=body["verdict"],
        layout=plan["layout"],
        step_seconds=step["seconds"],
        low_seconds=step["low_seconds"],
        high_seconds=step["high_seconds"],
        utilization_fraction=step["model_flops_utilization"],
        peak_bytes=memory["peak_bytes"],
        peak_low_bytes=memory["peak_low_bytes"],
        peak_high_bytes=memory["peak_high_bytes"],
        limit_bytes=memory["limit_bytes"],
        allocated_bytes=memory["allocated_bytes"],
        reserved_bytes=memory["reserved_bytes"],
        item_bytes=memory["items"],
        why_no_launch_file=tuple(body["missing_artifacts"].get(own_launch_file(plan["layout"]["framework"]), ())),
    )

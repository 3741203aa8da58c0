"""The highest utilization that anyone published of each card, with and without experts, by number format.

`python -m benchmarks.famous_runs.highest_utilization` writes the planner's table of it: of the runs that step times are
judged by, and of the famous ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from benchmarks.accuracy.step_time.cases import all_cases
from benchmarks.famous_runs.record import famous_runs
from benchmarks.famous_runs.step_times import published_step_seconds
from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue.catalogue import catalogue
from plimsoll.planners.formats.precision import training_precision
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.timing.utilization import TABLE, HighestUtilization
from plimsoll.service.ground.settings import Settings
from plimsoll.service.jobs.in_process import InProcess
from plimsoll.service.requests.models import ModelRef

DEFAULT_PRECISION = "bf16-mixed"
_MODEL: TypeAdapter[Any] = TypeAdapter(ModelRef)


class Class(NamedTuple):
    """Runs that are compared with one another."""

    gpu: str
    experts: bool
    compute_format: str


class Run(NamedTuple):
    """One measured step of a training whose weights all learn."""

    name: str
    model: ModelSpec
    gpu: Gpu
    gpus: int
    precision: str
    tokens: int
    sequence_length: int
    seconds: float


def highest_utilizations() -> dict[Class, HighestUtilization]:
    """Return the run of each class that reached the most of its card's peak, by what the model itself computes."""
    highest: dict[Class, HighestUtilization] = {}
    for run in (*_judged(), *_famous()):
        compute_format = training_precision(run.precision).compute_format
        peak = run.gpu.peak_flops_per_second.get(compute_format)
        if peak is None:
            continue
        of_class = Class(run.gpu.id, bool(run.model.experts_per_token), compute_format)
        # Attention is causal, and nothing that is computed again is counted.
        flops = 3.0 * run.model.forward_flops_per_token((run.sequence_length + 1) / 2) * run.tokens
        reached = flops / run.seconds / run.gpus / peak
        if of_class not in highest or reached > highest[of_class].fraction:
            highest[of_class] = HighestUtilization(fraction=round(reached, 3), run=run.name)
    return highest


def _judged() -> Iterator[Run]:
    for case in all_cases()[0]:
        yield Run(
            name=f"{case.model_name}, {case.hardware.gpus.minimum:,} GPUs ({case.source})",
            model=case.model,
            gpu=case.hardware.gpu,
            gpus=case.hardware.gpus.minimum,
            precision=case.precision,
            tokens=case.global_batch_size * case.sequence_length,
            sequence_length=case.sequence_length,
            seconds=case.seconds,
        )


def _famous() -> Iterator[Run]:
    models, gpus = InProcess(Settings()).models, catalogue()
    for run in famous_runs():
        training = run.request["training"]
        model = models.resolve(_MODEL.validate_python(run.request["model"])).spec
        seconds = published_step_seconds(run, model)
        gpu = run.request["hardware"]["gpu"]
        if seconds is not None and training.get("method", "full") == "full" and isinstance(gpu, str):
            yield Run(
                name=run.name,
                model=model,
                gpu=gpus.gpu(gpu),
                gpus=run.gpus,
                precision=training.get("precision", DEFAULT_PRECISION),
                tokens=run.tokens_per_step,
                sequence_length=training["sequence_length"],
                seconds=seconds,
            )


def table_text(highest: Mapping[Class, HighestUtilization]) -> str:
    """Return the planner's table."""
    lines = [
        "# The most that any public run reached; written by `python -m benchmarks.famous_runs.highest_utilization`."
    ]
    for of_class, found in sorted(highest.items()):
        lines += [
            "",
            "[[highest]]",
            f'gpu = "{of_class.gpu}"',
            f"experts = {str(of_class.experts).lower()}",
            f'compute_format = "{of_class.compute_format}"',
            f"fraction = {found.fraction}",
            f'run = "{found.run}"',
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table_text(highest_utilizations()), encoding="utf-8")

"""Every run whose step time was published, as the request it is asked by and the seconds that were measured."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.accuracy.asking import Json, Refused, Service
from benchmarks.accuracy.judged import Judged
from benchmarks.accuracy.peak_memory.row_requests import row_request, stated_version
from benchmarks.accuracy.step_time.cases import DATA, Case

DENSE, EXPERTS, SWEEP, ADAPTERS = "dense", "experts", "nanotron's sweep", "adapters"
KERNELS = "kernels: "  # how a row's note names them
ACCELERATION, TOKENS_OF_A_GPU = "foundation-model-stack/fms-acceleration", "train_tokens_per_second"
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """A run; `is_seen` says whether efficiencies were fitted to runs of its source.

    `group` names what runs that differ in more than their layout have in common, where their file says so.
    """

    name: str
    source: str
    stack: str
    gpu: str
    kind: str
    is_seen: bool
    request: Mapping[str, Any]
    seconds: float
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedAnswer:
    """A run and what the service answered."""

    run: TimedRun
    answer: Json | Refused

    @property
    def step(self) -> Json | None:
        """Return the answered step; None where the service refused."""
        return None if isinstance(self.answer, Refused) else self.answer["plan"]["step"]

    @property
    def judged(self) -> Judged:
        """Return the answered seconds beside the measured."""
        run, step = self.run, self.step
        same = {name: getattr(run, name) for name in ("source", "stack", "gpu", "kind", "is_seen")}
        if isinstance(self.answer, Refused) or step is None:
            return Judged(**same, refusal=self.answer.reasons[0] if isinstance(self.answer, Refused) else "")
        seconds = step["seconds"]
        band = (step["low_seconds"] / seconds, step["high_seconds"] / seconds)
        return Judged(**same, ratio=seconds / run.seconds, band=band)


def answers(runs: Iterable[TimedRun], service: Service) -> list[TimedAnswer]:
    """Ask for every run."""
    return [TimedAnswer(run=run, answer=service.answer(run.request)) for run in runs]


def run_of(case: Case) -> TimedRun:
    """Return a case of the files that efficiencies are fitted to."""
    dense = SWEEP if case.framework == "nanotron" else DENSE
    return TimedRun(
        name=case.table,
        source=case.source,
        stack=case.framework,
        gpu=case.gpu,
        kind=EXPERTS if case.model.experts_per_token else dense,
        is_seen=True,
        request=case.request,
        seconds=case.seconds,
    )


def fresh_runs() -> Iterator[TimedRun]:
    """Yield the runs that no fit has used."""
    for row in _rows("train_step_cases.csv"):
        is_adapter = row["method"] != "full"
        yield TimedRun(
            name=row["id"],
            source=row["source"],
            stack=row["framework"],
            gpu=row["gpu"],
            kind=ADAPTERS if is_adapter else EXPERTS if row["moe"] == "1" else DENSE,
            is_seen=False,
            request=fresh_request(row),
            seconds=float(row["measured_step_seconds"]),
            group=row["group"],
        )
    for row in _rows("train_memory.csv"):
        if ACCELERATION in row["source"] and row["throughput"] and row["throughput_unit"] == TOKENS_OF_A_GPU:
            yield _acceleration_run(row)


def _acceleration_run(row: Row) -> TimedRun:
    """Return a run of fms-acceleration's tables, which have tokens per second of one GPU."""
    request = row_request(row)
    training, hardware = request["training"], request["hardware"]
    tokens = training["global_batch_size"] * training["sequence_length"] / hardware["gpus"]
    is_mixture = row["model"].startswith("mixtral")
    return TimedRun(
        name=f"{row['model'][:12]} {training['method']} {row['base_quant'][:4]}".strip(),
        source=ACCELERATION,
        stack=str(request["framework"]),
        gpu=str(hardware["gpu"]),
        kind=ADAPTERS if training["method"] != "full" else EXPERTS if is_mixture else DENSE,
        is_seen=False,
        request=request,
        seconds=tokens / float(row["throughput"]),
    )


def fresh_request(row: Row) -> dict[str, Any]:
    """Return the body of the request of a row of train_step_cases.csv."""
    training: dict[str, Any] = {
        "method": row["method"],
        "precision": row["precision"],
        "optimizer": row["optimizer"],
        "sequence_length": int(row["sequence_length"]),
        "global_batch_size": int(row["global_batch_size"]),
        "attention": row["attention"] or "flash",
        **json.loads(row["extra"] or "{}"),
    }
    if row["micro_batch_size"]:
        training["micro_batch_size"] = int(row["micro_batch_size"])
    if row["recompute"]:
        training["recompute"] = row["recompute"]
    if row["note"].startswith(KERNELS):
        training["kernels"] = row["note"].removeprefix(KERNELS)
    hardware: dict[str, Any] = {"gpu": row["gpu"], "gpus": int(row["gpus"])}
    if row["gpus_per_node"]:
        hardware["gpus_per_node"] = int(row["gpus_per_node"])
    if row["nic_bytes_per_second"]:
        hardware["override"] = {"nic_bytes_per_second": float(row["nic_bytes_per_second"])}
    return {
        "model": row["model"] if not row["model"].startswith("{") else json.loads(row["model"]),
        "hardware": hardware,
        "training": training,
        "layout": json.loads(row["layout"] or "{}"),
        "framework": row["framework"],
        **stated_version(row),
    }


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)

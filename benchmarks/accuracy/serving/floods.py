"""Floods of requests that all come at once, as a public lab measured them, beside the planner's simulation.

No fit used these rows. Those of the dataset ShareGPT are asked with its mean lengths alone: how they spread was not
published with them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import PlimsollError, UnknownName
from plimsoll.planners.ground.hardware import GpuCount, Hardware
from plimsoll.planners.questions import ServingLayoutRequest, ServingQuestion
from plimsoll.planners.serving.answer import SimulatedLoad
from plimsoll.planners.serving.search.search import search_fleet
from plimsoll.planners.serving.simulated_load import SimulatedReplica

FLOODS = Path(__file__).parents[2] / "data" / "serving_throughput.csv"
KINDS = {"prompt_flood": "prompts", "sharegpt_flood": "ShareGPT", "short_flood": "short"}
# Endings of checkpoints' names beside those of the catalogue.
FORMAT_ENDINGS = ("-FP8", "-AWQ")
SCALE_BLOCK = 128
# The longest request where a row names none: what the lab set where it set one.
MAX_MODEL_LEN = 40960
GPUS_PER_NODE = 8
QUARTER = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """One row: planned over measured throughput, by the simulation and by the closed form, and both latencies."""

    kind: str
    engine: str
    gpu: str
    model: str
    throughput: float
    closed_form: float
    first_token: float
    token: float


def floods() -> tuple[tuple[Flood, ...], int]:
    """Return every row that fits as planned, and how many do not."""
    with FLOODS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] in KINDS]
    found = [flood for row in rows if (flood := _flood(row)) is not None]
    return tuple(found), len(rows) - len(found)


def flood_lines(rows: Sequence[Flood], left_out: int) -> Iterator[str]:
    """Yield the planned over the measured by kind, card, engine and model, medians."""
    yield "medians of planned over measured; within: rows whose throughput is planned within a quarter"
    yield (
        f"{'requests':9} {'card':14} {'engine':13} {'model':34} {'rows':>4} {'tokens/s':>8} {'within':>7} "
        f"{'closed form':>12} {'first token':>11} {'per token':>9}"
    )
    groups = sorted({(row.kind, row.gpu, row.engine, row.model) for row in rows})
    for group in groups:
        yield _line(group, [row for row in rows if (row.kind, row.gpu, row.engine, row.model) == group])
    for kind, gpu in sorted({(row.kind, row.gpu) for row in rows}):
        yield _line((kind, gpu, "all", "all"), [row for row in rows if (row.kind, row.gpu) == (kind, gpu)])
    yield from _factor_lines(rows)
    yield f"{left_out} rows do not fit as planned"


def _line(names: tuple[str, str, str, str], rows: Sequence[Flood]) -> str:
    kind, gpu, engine, model = names
    within = sum(abs(row.throughput - 1) <= QUARTER for row in rows)
    return (
        f"{KINDS[kind]:9} {gpu:14} {engine:13} {model.split('/')[-1]:34} {len(rows):4} "
        f"{_median([row.throughput for row in rows]):8.2f} {within:4}/{len(rows):2} "
        f"{_median([row.closed_form for row in rows]):12.2f} {_median([row.first_token for row in rows]):11.2f} "
        f"{_median([row.token for row in rows]):9.2f}"
    )


def _factor_lines(rows: Sequence[Flood]) -> Iterator[str]:
    """Yield what one factor by card would leave of prompts' floods, taken from the other models' geometric mean."""
    yield "prompts, planned over measured after the card's factor of all other models"
    prompts = [row for row in rows if row.kind == "prompt_flood"]
    for gpu, model in sorted({(row.gpu, row.model) for row in prompts}):
        own = [row.throughput for row in prompts if (row.gpu, row.model) == (gpu, model)]
        others = [row.throughput for row in prompts if row.gpu == gpu and row.model != model]
        if others:
            factor = float(np.exp(np.mean(np.log(others))))
            yield f"{gpu:14} {model.split('/')[-1]:34} {factor:6.2f} {_median([each / factor for each in own]):6.2f}"


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def _flood(row: Mapping[str, str]) -> Flood | None:
    """Return a row with what is planned for it; an engine's release that is not known is taken as its newest."""
    requests = round(float(row["concurrency"]))
    planned: tuple[SimulatedLoad, float] | None = None
    for version in (row["version"], None):
        try:
            planned = _planned(row, version, requests)
            break
        except PlimsollError:
            continue
    if planned is None:
        return None
    load, closed_form = planned
    measured = float(row["output_tok_s"])
    return Flood(
        kind=row["kind"],
        engine=row["engine"],
        gpu=row["gpu"],
        model=row["model"],
        throughput=load.output_tokens_per_second / measured,
        closed_form=closed_form / measured,
        first_token=load.ttft.mean_seconds * 1e3 / float(row["ttft_ms"]),
        token=load.tpot.mean_seconds * 1e3 / float(row["tpot_ms"]),
    )


def _planned(row: Mapping[str, str], version: str | None, requests: int) -> tuple[SimulatedLoad, float] | None:
    best = search_fleet((_question(row, version, requests),)).candidates[0]
    if best.deployment is None:
        return None
    replica = SimulatedReplica(
        question=best.question, settings=best.settings, replica=best.replica, deployment=best.deployment
    )
    return replica.at_once(requests), best.output_tokens_per_second


def _question(row: Mapping[str, str], version: str | None, requests: int) -> ServingQuestion:
    gpus, name = int(row["gpus"]), row["model"]
    for ending in FORMAT_ENDINGS:
        try:
            found = catalogue().model(name)
            break
        except UnknownName:
            name = name.removesuffix(ending)
    else:
        found = catalogue().model(name)
    return ServingQuestion(
        model=describe_config(found.config, name=found.id),
        hardware=Hardware(
            gpu=catalogue().gpu(row["gpu"]),
            gpus=GpuCount(minimum=gpus, maximum=gpus),
            gpus_per_node=GPUS_PER_NODE,
        ),
        weights=row["weights"],
        scale_block=SCALE_BLOCK if row["weights"] == "fp8" else None,
        engine=row["engine"],
        engine_version=version,
        concurrency=requests,
        chunked_prefill=True if "--enable_chunked_prefill" in row["note"] else None,
        input_tokens=round(float(row["isl"])),
        output_tokens=round(float(row["osl"])),
        max_model_len=int(row["max_model_len"] or MAX_MODEL_LEN),
        layout=ServingLayoutRequest(
            tensor_parallel=int(row["tp"]),
            pipeline_parallel=1,
            data_parallel=1,
            attention_data_parallel=1,
            expert_parallel=1,
        ),
    )

"""One published training: where it is printed, what was published of it, and the request it is asked by.

The records are `benchmarks/data/famous_runs/*.toml`, a file each, checked on reading. A request is sent as it stands.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).resolve().parents[1] / "data" / "famous_runs"
# Read in the source itself, known from the paper without it at hand, or a row of `benchmarks/data`.
WAYS_OF_KNOWING = ("read", "recalled", "data")
# Which operations a published rate counts.
COUNTINGS = ("recomputation", "whole attention", "causal attention")
# What was read of a GPU's memory.
MEMORY_KINDS = ("allocated", "reserved", "parameters and gradients")
DEGREES = ("data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel")
# Of a layout and a job, what sources leave out, in the order in which pages name it.
LEFT_OPEN = ("virtual_pipeline", "zero_stage", "sequence_parallel")
LEFT_OPEN_OF_JOB = ("micro_batch_size", "recompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedMemory:
    """Memory of one GPU as it was published; GB are 10⁹ bytes."""

    words: str
    gigabytes: float
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a source prints of a run's speed, as one of five figures, and of its memory.

    Without a figure the run is known to have run, and its speed is not.
    """

    words: str
    seconds: float | None = None
    tokens_per_second_per_gpu: float | None = None
    gpu_hours: float | None = None
    tokens: float | None = None
    teraflops_per_gpu: float | None = None
    utilization_fraction: float | None = None
    peak_teraflops: float | None = None
    counting: str | None = None
    memory: PublishedMemory | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FamousRun:
    """A run, and the body of its request.

    `pipeline_division` says how its layers were divided where they do not divide evenly, `data_row` which row of
    `benchmarks/data` it also is, and `unsaid` what the request cannot say, or the source does not.
    """

    slug: str
    name: str
    source: str
    url: str
    known_from: str
    ran_with: str
    published: Published
    request: Mapping[str, Any]
    pipeline_division: str | None = None
    data_row: str | None = None
    unsaid: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """Return how many GPUs it ran on."""
        return int(self.request["hardware"]["gpus"])

    @property
    def tokens_per_step(self) -> int:
        """Return the tokens of one global batch."""
        training = self.request["training"]
        return int(training["sequence_length"]) * int(training["global_batch_size"])

    @property
    def left_open(self) -> tuple[str, ...]:
        """Return what the request leaves to the planner of the layout."""
        layout, training = self.request["layout"], self.request["training"]
        pipelined, split = layout.get("pipeline_parallel", 1) > 1, layout.get("tensor_parallel", 1) > 1
        asked_of = {"virtual_pipeline": pipelined, "sequence_parallel": split}
        missing = (name for name in LEFT_OPEN if name not in layout and asked_of.get(name, True))
        return (*missing, *(name for name in LEFT_OPEN_OF_JOB if name not in training))


def famous_runs(folder: Path = RECORDS) -> tuple[FamousRun, ...]:
    """Return all runs, the largest number of GPUs first; raises ValueError for a record that is wrong."""
    runs = [read_record(file) for file in sorted(folder.glob("*.toml"))]
    return tuple(sorted(runs, key=lambda run: (-run.gpus, run.name)))


def read_record(file: Path) -> FamousRun:
    """Return one record; raises ValueError with the file's name where it is wrong."""
    try:
        fields = tomllib.loads(file.read_text(encoding="utf-8"))
        published = dict(fields.pop("published"))
        memory = published.pop("memory", None)
        run = FamousRun(
            slug=file.stem,
            published=Published(**published, memory=None if memory is None else PublishedMemory(**memory)),
            unsaid=tuple(fields.pop("unsaid", ())),
            **fields,
        )
        _check(run)
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"{file.name}: {problem}") from problem
    return run


def _check(run: FamousRun) -> None:
    """Raise ValueError for what no published run can be."""
    if not run.url.startswith("https://"):
        raise ValueError(f"its url is no https address: {run.url!r}")
    if run.known_from not in WAYS_OF_KNOWING:
        raise ValueError(f"known_from {run.known_from!r} is none of {', '.join(WAYS_OF_KNOWING)}")
    _check_published(run.published)
    layout, training = run.request["layout"], run.request["training"]
    if all(name in layout for name in DEGREES) and math.prod(layout[name] for name in DEGREES) != run.gpus:
        raise ValueError(f"its degrees do not multiply to {run.gpus:,} GPUs")
    at_once = layout.get("data_parallel", 1) * training.get("micro_batch_size", 1)
    if training["global_batch_size"] % at_once:
        raise ValueError(f"{at_once:,} sequences at once do not divide its batch of {training['global_batch_size']:,}")


def _check_published(published: Published) -> None:
    figures = [published.seconds, published.tokens_per_second_per_gpu, published.gpu_hours]
    figures += [published.teraflops_per_gpu, published.utilization_fraction]
    if sum(figure is not None for figure in figures) > 1:
        raise ValueError("more than one figure of its speed is given, which could disagree")
    is_rate = published.teraflops_per_gpu is not None or published.utilization_fraction is not None
    if is_rate and published.counting not in COUNTINGS:
        raise ValueError(f"counting {published.counting!r} is none of {', '.join(COUNTINGS)}")
    if (published.gpu_hours is None) != (published.tokens is None):
        raise ValueError("GPU hours and the tokens they were spent on belong together")
    if (published.utilization_fraction is None) != (published.peak_teraflops is None):
        raise ValueError("a utilization and the peak it is a part of belong together")
    if published.memory is not None and published.memory.kind not in MEMORY_KINDS:
        raise ValueError(f"memory kind {published.memory.kind!r} is none of {', '.join(MEMORY_KINDS)}")
    for field in dataclasses.fields(published):
        value = getattr(published, field.name)
        if isinstance(value, float) and not value > 0:
            raise ValueError(f"{field.name} is {value}")

"""The highest utilization that anyone measured on a card, beside which a plan's claim is held."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plimsoll.planners.jobs.job import Job

TABLE = Path(__file__).parent / "highest_utilization.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class HighestUtilization:
    """The part of a card's peak that the fastest public run of a class reached by its model's own operations."""

    fraction: float
    run: str


def highest_utilization(gpu: str, job: Job) -> HighestUtilization | None:
    """Return the highest of the card's public runs of such a model, None where there is none or only adapters learn."""
    return (
        None
        if job.method != "full"
        else _table().get((gpu, bool(job.model.experts_per_token), job.precision.compute_format))
    )


@functools.cache
def _table() -> Mapping[tuple[str, bool, str], HighestUtilization]:
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["highest"]
    keys = ((row.pop("gpu"), row.pop("experts"), row.pop("compute_format")) for row in rows)
    return {key: HighestUtilization(**row) for key, row in zip(keys, rows, strict=True)}

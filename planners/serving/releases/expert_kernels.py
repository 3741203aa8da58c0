"""Which kernel an engine computes a layer's experts with, by release, card, format and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from plimsoll.planners.ground.data_files import read_toml, record
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators.generations import generation
from plimsoll.planners.operators.tables import release_order
from plimsoll.planners.serving.releases.tables import engine_folders

TABLE = "expert_kernels.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertKernel:
    """What an engine runs: the kernel's name in `operators.experts`, and those that stand in where it was not measured.

    With `tile_rows` the kernel walks a tile of so many rows for every expert of the rank, touched or not, and loads
    its weights for each; 0 where it takes the touched experts alone.
    """

    kernels: tuple[str, ...]
    tile_rows: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One row of an engine's file; `until` is the first release without it, empty where it still holds."""

    formats: tuple[str, ...]
    kernels: tuple[str, ...]
    source: str
    cards: tuple[str, ...] = ()
    since: str = "0"
    until: str = ""
    least_tokens: int = 0
    least_inner: int = 0
    most_tensor_ranks: int = 1024
    splits_experts: bool = False
    needs_deep_gemm: bool = False
    tile_rows: int = 0

    def holds(self, number_format: str, card: str, release: tuple[int, ...]) -> bool:
        is_old = bool(self.until) and release >= release_order(self.until)
        is_release = release_order(self.since) <= release and not is_old
        return number_format in self.formats and is_release and (not self.cards or card in self.cards)


@cache
def _rows(engine: str) -> tuple[_Row, ...]:
    file = engine_folders()[engine] / TABLE
    rows: list[Mapping[str, Any]] = read_toml(file)["kernel"] if file.is_file() else []
    return tuple(record(_Row, {("since" if key == "from" else key): row[key] for key in row}) for row in rows)


def expert_kernel(
    engine: str,
    version: str,
    gpu: Gpu,
    number_format: str,
    *,
    tokens: float,
    inner: float,
    tensor_ranks: int = 1,
    splits_experts: bool = False,
    has_deep_gemm: bool = True,
) -> ExpertKernel | None:
    """Return the kernel for a step of so many `tokens`, None where the engine's files say nothing of it.

    `number_format` is a name of `operators.formats`, fp8_static where the scales of fp8's activations are given;
    `inner` are the features of an expert on the rank. `tensor_ranks` share each product, experts divided or not;
    with `splits_experts` they have whole experts each.
    """
    card, release = generation(gpu), release_order(version)
    for row in _rows(engine):
        is_size = tokens >= row.least_tokens and inner >= row.least_inner and tensor_ranks <= row.most_tensor_ranks
        is_built = has_deep_gemm or not row.needs_deep_gemm
        is_divided = splits_experts or not row.splits_experts
        if row.holds(number_format, card, release) and is_size and is_built and is_divided:
            return ExpertKernel(kernels=row.kernels, tile_rows=row.tile_rows, source=row.source)
    return None

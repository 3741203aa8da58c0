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
    its weights for each; 0 where it takes the touched experts alone. `backend` is the engine's own name of what runs
    it, where one can be set.
    """

    kernels: tuple[str, ...]
    tile_rows: int
    source: str
    backend: str | None = None


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
    divides_attention: bool = False
    tile_rows: int = 0
    backend: str | None = None

    def holds(self, number_format: str, card: str, release: tuple[int, ...]) -> bool:
        is_old = bool(self.until) and release >= release_order(self.until)
        is_release = release_order(self.since) <= release and not is_old
        return number_format in self.formats and is_release and (not self.cards or card in self.cards)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backend:
    """What an engine can be told to compute experts with: for which formats, on which cards, and what it runs."""

    name: str
    formats: tuple[str, ...]
    kernels: tuple[str, ...]
    source: str
    cards: tuple[str, ...] = ()


@cache
def _table(engine: str) -> Mapping[str, Any]:
    file = engine_folders()[engine] / TABLE
    return read_toml(file) if file.is_file() else {}


@cache
def _rows(engine: str) -> tuple[_Row, ...]:
    rows = _table(engine).get("kernel", ())
    return tuple(record(_Row, {("since" if key == "from" else key): row[key] for key in row}) for row in rows)


@cache
def _backends(engine: str) -> tuple[_Backend, ...]:
    return tuple(record(_Backend, row) for row in _table(engine).get("backend", ()))


def expert_backends(engine: str, gpu: Gpu, number_format: str) -> tuple[str, ...]:
    """Return the names of what an engine can be told to compute experts of a format with on a card."""
    card = generation(gpu)
    return tuple(
        each.name
        for each in _backends(engine)
        if number_format in each.formats and (not each.cards or card in each.cards)
    )


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
    copies_attention: bool = False,
    has_deep_gemm: bool = True,
    backend: str | None = None,
) -> ExpertKernel | None:
    """Return the kernel for a step of so many `tokens`, None where the engine's files say nothing of it.

    `number_format` is a name of `operators.formats`, fp8_static where the scales of fp8's activations are given;
    `inner` are the features of an expert on the rank. `tensor_ranks` share each product, experts divided or not;
    with `splits_experts` they have whole experts each, and with `copies_attention` requests of their own. A `backend`
    is one of `expert_backends`, None where the engine was told none.
    """
    if backend is not None:
        named = next(each for each in _backends(engine) if each.name == backend)
        return ExpertKernel(kernels=named.kernels, tile_rows=0, source=named.source, backend=backend)
    card, release = generation(gpu), release_order(version)
    for row in _rows(engine):
        is_size = tokens >= row.least_tokens and inner >= row.least_inner and tensor_ranks <= row.most_tensor_ranks
        is_built = has_deep_gemm or not row.needs_deep_gemm
        is_divided = splits_experts or not row.splits_experts
        is_attention = not (copies_attention and row.divides_attention)
        if row.holds(number_format, card, release) and is_size and is_built and is_divided and is_attention:
            return ExpertKernel(kernels=row.kernels, tile_rows=row.tile_rows, source=row.source, backend=row.backend)
    return None

"""More tables: the absorbed products of latent attention, exchanges between experts, blocks of sparse attention."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.operators.measurements import (
    ENGINES,
    MILLISECONDS,
    Measured,
    Rows,
    groups_of,
    kept_rows,
    newest_rows,
    numbers,
    read_rows,
    shapes_of,
)
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators import absorbed, exchanges, sparse_latent
from plimsoll.planners.operators.surface import FloatArray

MICROSECONDS = 1e6
LEAST_ROWS = 10
# DeepEP's own default of `Buffer.num_sms`; the table sweeps it.
COMMUNICATING_SMS = 20
# TensorRT-LLM's table has one model.
ALLTOALL_HIDDEN, ALLTOALL_PER_TOKEN = 7168, 8
# Whose values: dispatched in nvfp4, as TensorRT-LLM does with such weights.
ALLTOALL_KERNEL, ALLTOALL_FORMAT = "NVLinkOneSided", "nvfp4"
ALLTOALL_STEPS = {exchanges.DISPATCH: ("alltoall_dispatch",), exchanges.COMBINE: ("alltoall_combine",)}
# Models whose blocks are alike, by a part of their names.
SPARSE_FAMILIES = {"DeepSeek-V3.2": sparse_latent.DEEPSEEK, "GLM-5": sparse_latent.GLM}


def sparse_tables(folder: Path) -> Iterator[Measured]:
    """Yield blocks of sparse attention over a cache, of an engine's kernels the faster."""
    rows = read_rows(folder, "dsa_module")
    rows = kept_rows(rows, rows["phase"] != "context")
    rows["family"] = np.array(
        [next(SPARSE_FAMILIES[part] for part in SPARSE_FAMILIES if part in m) for m in rows["model"]]
    )
    columns = ("engine", "version", "op", "family", "kv_dtype", "gemm_type")
    for gpu, (engine, release, operation, *formats), group in groups_of(rows, columns):
        choice = sparse_latent.SKIPPED if operation.endswith("skip_indexer") else sparse_latent.INDEXED
        name = sparse_latent.variant(*formats, choice)
        sizes, seconds = _fastest(group, ("batch", "step", "heads"))
        yield Measured(
            card=gpu.id, operator=sparse_latent.OPERATOR, engine=ENGINES[engine], release=release, variant=name,
            grid=sparse_latent.GRID, roofline=sparse_latent.roofline(gpu, name),
            sizes=sizes, seconds=seconds, shapes=shapes_of(sizes[0], sizes[2]),
        )  # fmt: skip


def _fastest(rows: Rows, sizes: tuple[str, ...]) -> tuple[list[FloatArray], FloatArray]:
    """Return sizes and the least seconds of each: an engine has several kernels and takes the faster."""
    *keys, milliseconds = numbers(rows, *sizes, "ms")
    distinct, places = np.unique(np.array(keys), axis=1, return_inverse=True)
    least = np.full(distinct.shape[1], np.inf)
    np.minimum.at(least, places.ravel(), milliseconds)
    return list(distinct), least / MILLISECONDS


def absorbed_tables(folder: Path) -> Iterator[Measured]:
    """Yield the sum of the products before and after attention."""
    rows = newest_rows(read_rows(folder, "mla_bmm"), "dtype")
    rows = kept_rows(rows, rows["dtype"] == absorbed.PLAIN)
    for gpu, (engine, release, number_format), group in groups_of(rows, ("engine", "version", "dtype")):
        sizes, seconds = _summed(group, "op", ("mla_gen_pre", "mla_gen_post"), ("tokens", "heads"))
        yield Measured(
            card=gpu.id, operator=absorbed.OPERATOR, engine=ENGINES[engine], release=release, variant=number_format,
            grid=absorbed.GRID, roofline=absorbed.roofline(gpu, number_format),
            sizes=sizes, seconds=seconds, shapes=shapes_of(sizes[1]),
        )  # fmt: skip


def exchange_tables(folder: Path) -> Iterator[Measured]:
    """Yield dispatch and combine of DeepEP by nodes and of TensorRT-LLM by ranks."""
    rows = read_rows(folder, exchanges.NORMAL)
    default = (rows["dispatch_sms"] == COMMUNICATING_SMS) & (rows["combine_sms"] == COMMUNICATING_SMS)
    rows = newest_rows(kept_rows(rows, default), "nodes")
    for gpu, (release, nodes), group in groups_of(rows, ("version", "nodes"), LEAST_ROWS):
        tokens, hidden, per_token = numbers(group, "tokens", "hidden", "topk")
        for step in ALLTOALL_STEPS:
            seconds = np.sum(numbers(group, f"{step}_transmit_us", f"{step}_notify_us"), axis=0) / MICROSECONDS
            name = exchanges.variant(exchanges.NORMAL, step, int(nodes))
            yield _exchange(gpu, "sglang", release, name, [tokens, hidden * per_token], seconds)
    yield from _alltoall_tables(folder)


def _alltoall_tables(folder: Path) -> Iterator[Measured]:
    rows = read_rows(folder, "trtllm_alltoall")
    rows = kept_rows(rows, (rows["dtype"] == ALLTOALL_FORMAT) & (rows["kernel"] == ALLTOALL_KERNEL))
    for gpu, (release, ranks), group in groups_of(rows, ("version", "ep"), LEAST_ROWS):
        for step, operations in ALLTOALL_STEPS.items():
            (tokens,), seconds = _summed(group, "op", operations, ("tokens",))
            name = exchanges.variant(exchanges.NVLINK_ONE_SIDED, step, int(ranks))
            row = np.full_like(tokens, ALLTOALL_HIDDEN * ALLTOALL_PER_TOKEN)
            yield _exchange(gpu, ENGINES["trtllm"], release, name, [tokens, row], seconds)


def _exchange(gpu: Gpu, engine: str, release: str, name: str, sizes: list[FloatArray], seconds: FloatArray) -> Measured:
    return Measured(
        card=gpu.id, operator=exchanges.OPERATOR, engine=engine, release=release, variant=name,
        grid=exchanges.GRID, roofline=exchanges.roofline(gpu, name),
        sizes=sizes, seconds=seconds, shapes=shapes_of(sizes[1]),
    )  # fmt: skip


def _summed(
    rows: Rows, column: str, parts: tuple[str, ...], sizes: tuple[str, ...]
) -> tuple[list[FloatArray], FloatArray]:
    """Return sizes at which all parts were measured, and the seconds of all together."""
    each = []
    for part in parts:
        kept = kept_rows(rows, rows[column] == part)
        *keys, milliseconds = numbers(kept, *sizes, "ms")
        each.append(dict(zip(zip(*[key.tolist() for key in keys], strict=True), milliseconds.tolist(), strict=True)))
    common = sorted(set.intersection(*[set(times) for times in each]))
    seconds = np.array([sum(times[key] for times in each) for key in common]) / MILLISECONDS
    return [np.array(size, dtype=np.float64) for size in zip(*common, strict=True)], seconds

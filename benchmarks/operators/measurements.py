"""The measured tables as rows of sizes, rooflines and seconds, one group a surface; what is left out, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.parquet as parquet

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators import attention, collectives, experts, latent, products, recurrent
from plimsoll.planners.operators.formats import FORMATS
from plimsoll.planners.operators.surface import FloatArray, Grid, Roofline
from plimsoll.planners.operators.tables import release_order

Rows = Mapping[str, npt.NDArray[np.generic]]
MILLISECONDS = 1e3
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
# A release that was kept by the source to show drift, where a newer one stands beside it.
DRIFT = ("h100_sxm", "vllm", "0.14.0")
# vLLM's products by blocks are timed eagerly, so that the host hides the kernel; TensorRT-LLM's in nvfp4 without the
# tuning that it does at start (trtllm::nvfp4_gemm asks AutoTuner, which collect_gemm.py never runs).
UNFIT_PRODUCTS = (("vllm", "fp8_block"), ("trtllm", "nvfp4"))
# Kernels timed without the tuning that an engine does at start, older ones several times slower than their successor,
# one measured below the time that its weights take to read, and ones for other activations.
UNFIT_EXPERTS = (
    ("h100_sxm", "vllm_modeloptfp8moe_flashinfer_cutlass"),
    ("h200_sxm", "vllm_modeloptfp8moe_flashinfer_cutlass"),
    ("h100_sxm", "sglang_flashinfer_cutlass_moe"),
    ("h200_sxm", "sglang_flashinfer_cutlass_moe"),
    ("", "vllm_marlin_int4_moe"),
    ("", "moe_torch_flow_min_latency"),
    ("", "situ_as_silu"),
    ("", "w4a4mxfp4"),
)
# DeepSeek-V3's grouped choice sends the even logits of vLLM's and SGLang's runs to half of the experts.
GROUPED_SHAPE = (7168, 2048, 256)
# Models whose experts have no gate, by hidden and inner features: the Nemotron 3 family's.
PLAIN_SHAPES = ((1024, 2688), (2048, 5120), (2688, 1856), (4096, 2688), (8192, 5120))
# Whose kernel one is, by a part of its name, the first that is in it.
KERNELS = (
    ("flashinfer_trtllm", "generated"),
    ("marlin", "marlin"),
    ("deepgemm", "deepgemm"),
    ("cutlass", "cutlass"),
    ("triton", "triton"),
    ("vllm_fused_moe", "triton"),
    ("moe_torch_flow", "cutlass"),
)
# Weights read faster than the card can: the table does not say how.
UNUSABLE_TOKEN_ATTENTION = ("a100_sxm", "trtllm")
BALANCED = "balanced"
LEAST_ROWS, LEAST_MESSAGES, LEAST_RECURRENCES = 150, 8, 20


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Measured:
    """Rows of one surface: `sizes` along its axes, and which shape each row belongs to, left out together."""

    card: str
    operator: str
    engine: str
    release: str
    variant: str
    grid: Grid
    roofline: Roofline
    sizes: list[FloatArray]
    seconds: FloatArray
    shapes: npt.NDArray[np.generic]


def read_rows(folder: Path, name: str) -> dict[str, npt.NDArray[np.generic]]:
    """Return a table's columns, of cards that the catalogue has."""
    table = parquet.read_table(folder / f"{name}.parquet")
    columns = {}
    for column in table.column_names:
        array = table[column].combine_chunks()
        decoded = array.dictionary_decode() if hasattr(array, "dictionary_decode") else array
        columns[column] = decoded.to_numpy(zero_copy_only=False)
    known = columns["gpu"] != ""
    return {column: values[known] for column, values in columns.items()}


def groups_of(
    rows: Rows, columns: tuple[str, ...], least: int = LEAST_ROWS
) -> Iterator[tuple[Gpu, tuple[str, ...], dict[str, npt.NDArray[np.generic]]]]:
    """Yield a card, the values of `columns`, and the rows that have them; too few rows make no surface."""
    known, places = _distinct(rows, ("gpu", *columns))
    for (card, *values), place in zip(known, places, strict=True):
        if len(place) >= least:
            yield catalogue().gpu(card), tuple(values), {name: column[place] for name, column in rows.items()}


def _distinct(rows: Rows, columns: tuple[str, ...]) -> tuple[list[tuple[str, ...]], list[npt.NDArray[np.int64]]]:
    """Return the combinations of values that occur in `columns`, as text, and the places of each one's rows."""
    encoded = [pyarrow.array(rows[name]).dictionary_encode() for name in columns]
    singles = [(each.dictionary.to_pylist(), each.indices.to_numpy()) for each in encoded]
    code = np.ravel_multi_index([inverse for _, inverse in singles], [len(values) for values, _ in singles])
    codes, inverse = np.unique(code, return_inverse=True)
    places = np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])
    parts = np.unravel_index(codes, [len(values) for values, _ in singles])
    names = [[str(values[at]) for at in part] for (values, _), part in zip(singles, parts, strict=True)]
    return list(zip(*names, strict=True)), places


def kept_rows(rows: Rows, kept: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[np.generic]]:
    """Return the rows that are kept."""
    return {name: column[kept] for name, column in rows.items()}


def numbers(rows: Rows, *names: str) -> list[FloatArray]:
    """Return columns as numbers."""
    return [np.asarray(rows[name], dtype=np.float64) for name in names]


def newest_rows(rows: Rows, *kind: str) -> dict[str, npt.NDArray[np.generic]]:
    """Return the rows of the newest release of each kind on each card in each engine."""
    keys, places = _distinct(rows, ("gpu", "engine", *kind, "version"))
    newest: dict[tuple[str, ...], str] = {}
    for *key, release in keys:
        kept = newest.get(tuple(key))
        if kept is None or release_order(release) > release_order(kept):
            newest[tuple(key)] = release
    taken = [place for key, place in zip(keys, places, strict=True) if newest[key[:-1]] == key[-1]]
    whole = np.sort(np.concatenate(taken))
    return {name: column[whole] for name, column in rows.items()}


def shapes_of(*sizes: FloatArray) -> npt.NDArray[np.generic]:
    """Return the number of each row's combination of sizes."""
    return np.unique(np.array(sizes), axis=1, return_inverse=True)[1]


def _products(folder: Path) -> Iterator[Measured]:
    rows = read_rows(folder, "gemm")
    drift = (rows["system"] == DRIFT[0]) & (rows["engine"] == DRIFT[1]) & (rows["version"] == DRIFT[2])
    unfit = np.zeros(len(rows["ms"]), dtype=bool)
    for engine, number_format in UNFIT_PRODUCTS:
        unfit |= (rows["engine"] == engine) & (rows["dtype"] == number_format)
    # RTX PRO 6000's table by blocks is an older release's, timed like the others' graphs.
    rows = newest_rows(kept_rows(rows, ~drift & ~unfit), "dtype")
    for gpu, (engine, release, number_format), group in groups_of(rows, ("engine", "version", "dtype")):
        m, n, k = numbers(group, "m", "n", "k")
        yield Measured(
            card=gpu.id, operator=products.OPERATOR, engine=ENGINES[engine], release=release, variant=number_format,
            grid=products.GRID, roofline=products.roofline(gpu, number_format),
            sizes=[m, n, k],
            seconds=numbers(group, "ms")[0] / MILLISECONDS, shapes=shapes_of(n, k),
        )  # fmt: skip


def _token_attention(folder: Path) -> Iterator[Measured]:
    rows = read_rows(folder, "generation_attention")
    unusable = (rows["system"] == UNUSABLE_TOKEN_ATTENTION[0]) & (rows["engine"] == UNUSABLE_TOKEN_ATTENTION[1])
    rows = newest_rows(kept_rows(rows, ~unusable), "kv_dtype", "head_dim")
    for gpu, (engine, release, cache, size), group in groups_of(rows, ("engine", "version", "kv_dtype", "head_dim")):
        variant = attention.token_variant(cache, int(size))
        b, h, g, step, window = numbers(group, "batch", "heads", "kv_heads", "step", "window")
        seen = np.where(window > 0, np.minimum(step + 1, window), step + 1)
        yield Measured(
            card=gpu.id, operator=attention.TOKEN, engine=ENGINES[engine], release=release,
            variant=variant, grid=attention.TOKEN_GRID, roofline=attention.token_roofline(gpu, variant),
            sizes=[b * g, seen, h / g],
            seconds=numbers(group, "ms")[0] / MILLISECONDS, shapes=shapes_of(h, g),
        )  # fmt: skip


def _prompt_attention(folder: Path) -> Iterator[Measured]:
    rows = read_rows(folder, "context_attention")
    rows = newest_rows(rows, "attn_dtype", "kv_dtype", "head_dim")
    columns = ("engine", "version", "attn_dtype", "kv_dtype", "head_dim")
    for gpu, (engine, release, arithmetic, cache, size), group in groups_of(rows, columns):
        variant = attention.prompt_variant(arithmetic, cache, int(size))
        b, h, g, tokens, window = numbers(group, "batch", "heads", "kv_heads", "isl", "window")
        scored = attention.scored_part(tokens, np.where(window > 0, window, tokens))
        yield Measured(
            card=gpu.id, operator=attention.PROMPT, engine=ENGINES[engine], release=release,
            variant=variant, grid=attention.PROMPT_GRID, roofline=attention.prompt_roofline(gpu, variant),
            sizes=[b * h, tokens, h / g, scored],
            seconds=numbers(group, "ms")[0] / MILLISECONDS, shapes=shapes_of(h, g),
        )  # fmt: skip


def expert_groups(
    folder: Path, *distributions: str
) -> Iterator[tuple[Gpu, tuple[str, ...], dict[str, npt.NDArray[np.generic]]]]:
    """Yield a card, its engine, release and variant, and the rows of experts whose tokens were drawn in these ways."""
    rows = read_rows(folder, "moe")
    drift = (rows["system"] == DRIFT[0]) & (rows["engine"] == DRIFT[1]) & (rows["version"] == DRIFT[2])
    unfit = np.zeros(len(rows["ms"]), dtype=bool)
    for card, name in UNFIT_EXPERTS:
        kernels = [kernel for kernel in np.unique(rows["kernel"]) if name in kernel]
        unfit |= np.isin(rows["kernel"], kernels) & ((rows["system"] == card) if card else True)
    shape = (rows["hidden"] == GROUPED_SHAPE[0]) & (rows["inter"] == GROUPED_SHAPE[1])
    grouped = shape & (rows["experts"] == GROUPED_SHAPE[2]) & (rows["engine"] != "trtllm")
    known = np.isin(rows["dtype"], list(FORMATS)) & np.isin(rows["distribution"], distributions)
    rows = kept_rows(rows, known & ~drift & ~unfit & ~grouped)
    shapes = zip(rows["hidden"].tolist(), rows["inter"].tolist(), strict=True)
    rows["kind"] = np.array([experts.PLAIN if shape in PLAIN_SHAPES else experts.GATED for shape in shapes])
    owners = {kernel: _owner(kernel) for kernel in set(rows["kernel"])}
    rows["owner"] = np.array([owners[kernel] for kernel in rows["kernel"]])
    rows = newest_rows(rows, "dtype", "kind", "owner")
    columns = ("engine", "version", "dtype", "kind", "owner")
    for gpu, (engine, release, *variant), group in groups_of(rows, columns):
        yield gpu, (ENGINES[engine], release, experts.variant(*variant)), group


def _experts(folder: Path) -> Iterator[Measured]:
    for gpu, (engine, release, variant), group in expert_groups(folder, BALANCED):
        t, h, i, k, e, tp, ep = numbers(group, "tokens", "hidden", "inter", "topk", "experts", "tp", "ep")
        worked = np.maximum(t * k / ep, 1.0)
        touched = np.minimum(e / ep, worked)
        each, inner = worked / touched, i / tp
        yield Measured(
            card=gpu.id, operator=experts.OPERATOR, engine=engine, release=release,
            variant=variant, grid=experts.GRID,
            roofline=experts.roofline(gpu, variant), sizes=[touched, each, h * inner, h / inner],
            seconds=numbers(group, "ms")[0] / MILLISECONDS, shapes=shapes_of(h, i, e),
        )  # fmt: skip


def _owner(kernel: str) -> str:
    return next(owner for part, owner in KERNELS if part in kernel)


def _latent(folder: Path) -> Iterator[Measured]:
    rows = newest_rows(read_rows(folder, "mla_kernel"), "phase", "kv_dtype")
    for gpu, (engine, release, phase, cache), group in groups_of(rows, ("engine", "version", "phase", "kv_dtype")):
        b, h, tokens, step = numbers(group, "batch", "heads", "isl", "step")
        is_prompt = phase == "context"
        roofline = latent.prompt_roofline(gpu, cache) if is_prompt else latent.token_roofline(gpu, cache)
        yield Measured(
            card=gpu.id, operator=latent.PROMPT if is_prompt else latent.TOKEN, engine=ENGINES[engine],
            release=release, variant=cache, grid=latent.PROMPT_GRID if is_prompt else latent.TOKEN_GRID,
            roofline=roofline, sizes=[b, tokens if is_prompt else step + 1, h],
            seconds=numbers(group, "ms")[0] / MILLISECONDS, shapes=shapes_of(b, h),
        )  # fmt: skip


def _collectives(folder: Path) -> Iterator[Measured]:
    rows = read_rows(folder, "nccl")
    rows = kept_rows(rows, rows["dtype"] == "half")
    for gpu, (release, operation, ranks), group in groups_of(rows, ("version", "op", "gpus"), LEAST_MESSAGES):
        yield _collective(gpu, collectives.NCCL, release, operation, int(ranks), group)
    rows = read_rows(folder, "custom_allreduce")
    graphs = np.array([not kernel.endswith("eager") for kernel in rows["kernel"]])
    for gpu, (engine, release, ranks), group in groups_of(
        newest_rows(kept_rows(rows, graphs), "gpus"), ("engine", "version", "gpus"), LEAST_MESSAGES
    ):
        yield _collective(gpu, ENGINES[engine], release, collectives.ALL_REDUCE, int(ranks), group)


def _collective(gpu: Gpu, engine: str, release: str, operation: str, ranks: int, group: Rows) -> Measured:
    (sent,) = numbers(group, "bytes")
    return Measured(
        card=gpu.id, operator=collectives.OPERATOR, engine=engine, release=release,
        variant=collectives.variant(operation, ranks), grid=collectives.GRID,
        roofline=collectives.roofline(gpu, collectives.variant(operation, ranks)), sizes=[sent],
        seconds=numbers(group, "ms")[0] / MILLISECONDS, shapes=shapes_of(sent),
    )  # fmt: skip


def _recurrent(folder: Path) -> Iterator[Measured]:
    for name, kind in (("gdn", recurrent.GATED_DELTA), ("kda", recurrent.CHANNEL_DELTA)):
        rows = newest_rows(read_rows(folder, name))
        for gpu, (engine, release, phase), group in groups_of(rows, ("engine", "version", "phase"), LEAST_RECURRENCES):
            if phase != "verify":
                yield from _recurrence(gpu, ENGINES[engine], release, kind, phase, group)


def _recurrence(gpu: Gpu, engine: str, release: str, kind: str, phase: str, group: Rows) -> Iterator[Measured]:
    """Add up the convolution and the fastest of the scans that were measured at a size."""
    is_convolution = np.array(["conv" in kernel for kernel in group["kernel"]])
    sizes = numbers(group, "batch", "seq_len", "num_k_heads", "num_v_heads", "ms")
    fastest: list[dict[tuple[float, ...], float]] = []
    for kept in (is_convolution, ~is_convolution):
        best: dict[tuple[float, ...], float] = {}
        for *key, milliseconds in zip(*[size[kept].tolist() for size in sizes], strict=True):
            best[tuple(key)] = min(best.get(tuple(key), np.inf), milliseconds)
        fastest.append(best)
    both = sorted(fastest[0].keys() & fastest[1].keys())
    if len(both) < LEAST_RECURRENCES:
        return
    b, tokens, keys, heads = (np.array(column) for column in zip(*both, strict=True))
    seconds = np.array([fastest[0][key] + fastest[1][key] for key in both]) / MILLISECONDS
    kind_phase = recurrent.PROMPT if phase == "context" else recurrent.TOKEN
    each = tokens if kind_phase == recurrent.PROMPT else np.ones_like(tokens)
    yield Measured(
        card=gpu.id, operator=kind, engine=engine, release=release, variant=kind_phase,
        grid=recurrent.GRID, roofline=recurrent.roofline(gpu, kind_phase),
        sizes=[b, each, heads],
        seconds=seconds, shapes=shapes_of(keys, heads),
    )  # fmt: skip


# The measurements of each kind of operator; of several releases of a kind the newest alone.
READERS: Mapping[str, Callable[[Path], Iterator[Measured]]] = {
    "recurrent": _recurrent,
    "latent": _latent,
    "collectives": _collectives,
    "products": _products,
    "experts": _experts,
    "token_attention": _token_attention,
    "prompt_attention": _prompt_attention,
}

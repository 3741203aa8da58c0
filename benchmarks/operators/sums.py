"""Whole blocks of latent attention over a cache, as measured, beside the sum of the operators that they are made of.

    python -m benchmarks.operators.sums FOLDER

writes one line for each card, engine and format to `docs/operators.md`. What the sum lacks are norms, rotary embedding
and writing the cache.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from benchmarks.operators.measurements import ENGINES, MILLISECONDS, groups_of, kept_rows, numbers, read_rows
from benchmarks.operators.report import write_block
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators.absorbed import absorbed_products
from plimsoll.planners.operators.latent import latent_token_attention
from plimsoll.planners.operators.products import products
from plimsoll.planners.operators.surface import FloatArray

# DeepSeek-V3's: hidden features, latents of queries and of keys and values with angles, features of a head's query and
# of its output.
HIDDEN, QUERY_LATENT, ENTRY, QUERY_SIZE, VALUE_SIZE = 7168, 1536, 576, 192, 128


def main(folder: Path) -> None:
    """Write the ratios of sum over block: the median, the 10th and the 90th percentile, and of 1 and 256 sequences."""
    rows = read_rows(folder, "mla_module")
    rows = kept_rows(rows, rows["phase"] == "generation")
    head = f"{'card':26}{'engine':14}{'weights, cache':22}{'rows':>7}{'sum over block':>22}{'1 sequence':>12}{'256':>8}"
    lines = []
    for gpu, (engine, weights, cache), group in groups_of(rows, ("engine", "gemm_type", "kv_dtype")):
        b, step, h, ms = numbers(group, "batch", "step", "heads", "ms")
        ratio = _sum(gpu, ENGINES[engine], weights, cache, (b, step + 1, h)) * MILLISECONDS / ms
        low, middle, high = np.quantile(ratio, (0.1, 0.5, 0.9))
        of = [f"{np.median(ratio[b == each]):.2f}" for each in (1, 256)]
        spread = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        left = f"{gpu.id:26}{ENGINES[engine]:14}{weights + ', ' + cache:22}{len(ms):>7,}"
        lines.append(f"{left}{spread:>22}{of[0]:>12}{of[1]:>8}")
    write_block("sums", [head, *sorted(lines)])


def _sum(
    gpu: Gpu, engine: str, weights: str, cache: str, sizes: tuple[FloatArray, FloatArray, FloatArray]
) -> FloatArray:
    sequences, cached, heads = sizes
    product, absorbed = products(gpu, engine, weights), absorbed_products(gpu, engine)
    attention = latent_token_attention(gpu, engine, cache)
    if absorbed is None or attention is None:
        raise KeyError(gpu.id)
    projections = (
        product.seconds(sequences, QUERY_LATENT + ENTRY, HIDDEN)
        + product.seconds(sequences, heads * QUERY_SIZE, QUERY_LATENT)
        + product.seconds(sequences, HIDDEN, heads * VALUE_SIZE)
    )
    read = attention.seconds(sequences, cached, heads)
    return np.asarray(projections + absorbed.seconds(sequences, heads) + read)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Whole blocks of DeepSeek sparse attention over a cache: projections, indexer, attention over the picked entries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators.formats import FORMATS
from plimsoll.planners.operators.surface import FloatArray, Grid, Roofline, Surface
from plimsoll.planners.operators.tables import Evidence, find

OPERATOR = "sparse_token_block"
# Sequences, cached tokens of each, heads of one rank.
GRID = Grid(
    knots=((0, 2, 4, 6, 8, 10), (0, 8, 10, 11, 12, 13, 14, 16, 18, 20), (0, 1, 2, 3, 4, 5, 6, 7)), grows=(0, 1, 2)
)
DEEPSEEK, GLM = "deepseek_v3.2", "glm_5"
# The measured families, by hidden features and those of the query's latent.
FAMILIES = {(7168, 1536): DEEPSEEK, (6144, 2048): GLM}
# An indexer picks entries in each layer, or an earlier layer's choice is used again (GLM-5.2).
INDEXED, SKIPPED = "indexed", "skipped"
CACHE_BYTES = {"bfloat16": 2.0, "fp8": 1.0}
PICKED = 2048
# The smaller of DeepSeek-V3.2's and GLM-5's: hidden features, the query's latent, features of a head with and without
# angles, and of an entry.
HIDDEN, QUERY_LATENT, QUERY_SIZE, VALUE_SIZE, ENTRY_SIZE = 6144, 1536, 192, 128, 576
PLAIN = "bfloat16"
# What stands in for a format that blocks were not measured with.
ALIKE = {"fp8": ("fp8_block",), "fp8_static": ("fp8_block",), "nvfp4": ("fp8_block",)}


def variant(family: str, cache_format: str, weight_format: str, choice: str) -> str:
    """Return the name of a block's variant."""
    return f"{family},{cache_format},{weight_format},{choice}"


def _weights(heads: FloatArray) -> FloatArray:
    """Return the weights of a block's products but the indexer's, at least."""
    latents = HIDDEN * (QUERY_LATENT + ENTRY_SIZE)
    return latents + heads * (QUERY_LATENT * QUERY_SIZE + VALUE_SIZE * HIDDEN)


def roofline(gpu: Gpu, name: str) -> Roofline:
    """Return the time to read the weights and the entries that are picked once."""
    _, cache_format, weight_format, _ = name.split(",")
    weight, cache = FORMATS[weight_format].weight_bytes, CACHE_BYTES[cache_format]

    def seconds(sequences: FloatArray, cached: FloatArray, heads: FloatArray) -> FloatArray:
        entries = cache * ENTRY_SIZE * sequences * np.minimum(cached, PICKED)
        return np.asarray((weight * _weights(heads) + entries) / gpu.memory_bytes_per_second)

    return seconds


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SparseBlock:
    """A layer's whole attention block on one rank, its norms and the exchange between ranks apart."""

    surface: Surface
    evidence: Evidence

    def seconds(self, sequences: npt.ArrayLike, cached: npt.ArrayLike, heads: npt.ArrayLike) -> FloatArray:
        """Return the seconds of a layer for one new token in each sequence."""
        return self.surface.seconds(sequences, cached, heads)


def sparse_block(
    gpu: Gpu, engine: str, family: str, weight_format: str, cache_format: str, *, indexes: bool = True
) -> SparseBlock | None:
    """Return the block of a family of models, None where none was measured.

    Weights in another format, and then a cache in another, stand in where a block was not measured in its own; a block
    that skips the indexer has one with it stand in.
    """
    choices = (INDEXED,) if indexes else (SKIPPED, INDEXED)
    formats = dict.fromkeys((weight_format, *ALIKE.get(weight_format, ()), PLAIN))
    asked = variant(family, cache_format, weight_format, choices[0])
    wanted = [
        (variant(family, cache, weights, choice),)
        for choice in choices
        for weights in formats
        for cache in dict.fromkeys((cache_format, *CACHE_BYTES))
    ]
    found = find(gpu, OPERATOR, engine, [(asked,), *wanted], GRID, roofline)
    return None if found is None else SparseBlock(surface=found[0], evidence=found[1])

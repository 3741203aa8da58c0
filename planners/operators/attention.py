"""Attention over a prompt, and of one new token over a cache, with heads that have keys and values of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators.formats import operations_per_second
from plimsoll.planners.operators.surface import FloatArray, Grid, Roofline, Surface
from plimsoll.planners.operators.tables import Evidence, find

PROMPT, TOKEN = "prompt_attention", "token_attention"
# Sequences times heads, tokens, heads for each of the keys', and the part of the square of scores that is worked out.
PROMPT_GRID = Grid(
    knots=(
        (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14),
        (0, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14),
        (0, 1, 3, 5, 6.6),
        (-9, -6, -4, -3, -2, -1, 0),
    ),
    grows=(0, 1, 3),
)
# Sequences times the keys' heads, positions that a token looks back on, heads for each of the keys'.
TOKEN_GRID = Grid(
    knots=(
        (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17),
        (0, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17),
        (0, 1, 2, 3, 4, 5, 6.6),
    ),
    grows=(0, 1, 2),
)
ACTIVATION_BYTES = 2
# Bytes of an element of a cache.
CACHE_BYTES = {"bfloat16": 2, "fp8": 1}
HEAD_SIZES = (64, 128, 192, 256, 512)
ARITHMETIC = "bfloat16"


def scored_part(tokens: npt.ArrayLike, window: npt.ArrayLike | None) -> FloatArray:
    """Return what part of all pairs of two tokens a causal mask leaves, each looking back on `window` at most."""
    length = np.asarray(tokens, dtype=np.float64)
    seen = length if window is None else np.minimum(length, window)
    return np.asarray(seen * (length - (seen - 1) / 2) / length**2)


def prompt_roofline(gpu: Gpu, variant: str) -> Roofline:
    """Return the longer of moving queries, keys, values and results once and of scoring the pairs."""
    arithmetic, _, size = variant.split(",")
    head_size = int(size)
    rate = operations_per_second(gpu, ("fp8",) if arithmetic == "fp8" else ("bf16",))

    def seconds(heads: FloatArray, tokens: FloatArray, group: FloatArray, scored: FloatArray) -> FloatArray:
        moved = ACTIVATION_BYTES * head_size * heads * tokens * (2 + 2 / group) / gpu.memory_bytes_per_second
        return np.asarray(np.maximum(moved, 4 * heads * scored * tokens**2 * head_size / rate))

    return seconds


def token_roofline(gpu: Gpu, variant: str) -> Roofline:
    """Return the longer of reading the cached keys and values once and of scoring them in 16 bits."""
    cache_format, size = variant.split(",")
    head_size = int(size)
    rate = operations_per_second(gpu, ("bf16",))

    def seconds(key_heads: FloatArray, positions: FloatArray, group: FloatArray) -> FloatArray:
        read = 2 * CACHE_BYTES[cache_format] * head_size * key_heads * positions / gpu.memory_bytes_per_second
        return np.asarray(np.maximum(read, 4 * key_heads * group * positions * head_size / rate))

    return seconds


def prompt_variant(arithmetic: str, cache_format: str, head_size: int) -> str:
    """Return the name of a kernel's variant: its arithmetic, the cache it writes, the size of its heads."""
    return f"{arithmetic},{cache_format},{head_size}"


def token_variant(cache_format: str, head_size: int) -> str:
    """Return the name of a kernel's variant: the cache it reads and the size of its heads."""
    return f"{cache_format},{head_size}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PromptAttention:
    """Causal attention of prompts without anything cached before them."""

    surface: Surface
    evidence: Evidence

    def seconds(
        self,
        sequences: npt.ArrayLike,
        tokens: npt.ArrayLike,
        heads: npt.ArrayLike,
        key_heads: npt.ArrayLike,
        *,
        window: int | None = None,
    ) -> FloatArray:
        """Return the seconds of one layer, `heads` and `key_heads` those of one rank."""
        h, g = np.asarray(heads, dtype=np.float64), np.asarray(key_heads, dtype=np.float64)
        return self.surface.seconds(np.asarray(sequences) * h, tokens, h / g, scored_part(tokens, window))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TokenAttention:
    """Attention of one new token in each of several sequences."""

    surface: Surface
    evidence: Evidence

    def seconds(
        self, sequences: npt.ArrayLike, positions: npt.ArrayLike, heads: npt.ArrayLike, key_heads: npt.ArrayLike
    ) -> FloatArray:
        """Return the seconds of one layer whose tokens look back on `positions`; heads are those of one rank."""
        h, g = np.asarray(heads, dtype=np.float64), np.asarray(key_heads, dtype=np.float64)
        return self.surface.seconds(np.asarray(sequences) * g, positions, h / g)


def prompt_attention(gpu: Gpu, engine: str, head_size: int, cache_format: str = ARITHMETIC) -> PromptAttention:
    """Return attention over prompts, by the nearest size of heads that was measured.

    Into a cache in fp8 engines attend in fp8 where they have such kernels, and in 16 bits else.
    """
    wanted = [_prompt_variants(cache_format, size) for size in _sizes(head_size)]
    asked = tuple(variant.rpartition(",")[0] + f",{head_size}" for variant in wanted[0])
    found = find(gpu, PROMPT, engine, [asked, *wanted], PROMPT_GRID, prompt_roofline)
    if found is None:
        raise KeyError(head_size)
    return PromptAttention(surface=found[0], evidence=found[1])


def _prompt_variants(cache_format: str, size: int) -> tuple[str, ...]:
    plain = prompt_variant(ARITHMETIC, ARITHMETIC, size)
    if cache_format == ARITHMETIC:
        return (plain,)
    return (prompt_variant(cache_format, cache_format, size), prompt_variant(ARITHMETIC, cache_format, size), plain)


def token_attention(gpu: Gpu, engine: str, head_size: int, cache_format: str = ARITHMETIC) -> TokenAttention:
    """Return attention over a cache, by the nearest size of heads that was measured."""
    caches = dict.fromkeys((cache_format, *CACHE_BYTES))
    wanted = [(token_variant(cache, size),) for size in _sizes(head_size) for cache in caches]
    asked = token_variant(cache_format, head_size)
    found = find(gpu, TOKEN, engine, [(asked,), *wanted], TOKEN_GRID, token_roofline)
    if found is None:
        raise KeyError(head_size)
    return TokenAttention(surface=found[0], evidence=found[1])


def _sizes(head_size: int) -> list[int]:
    """Return the measured sizes of heads, the nearest first."""
    return sorted(HEAD_SIZES, key=lambda size: abs(np.log2(size / head_size)))

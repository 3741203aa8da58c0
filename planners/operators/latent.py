"""Multi-head latent attention's own kernel, with DeepSeek-V3's widths: its products are those of `products.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators.attention import ACTIVATION_BYTES, CACHE_BYTES
from plimsoll.planners.operators.formats import operations_per_second
from plimsoll.planners.operators.surface import FloatArray, Grid, Roofline, Surface
from plimsoll.planners.operators.tables import Evidence, find

PROMPT, TOKEN = "latent_prompt_attention", "latent_token_attention"
# Sequences, tokens of a prompt, heads.
PROMPT_GRID = Grid(
    knots=(
        (0, 1, 2, 3, 4, 5, 6, 7, 8, 10),
        (0, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        (0, 2, 4, 5, 6, 7),
    ),
    grows=(0, 1, 2),
)
# Sequences, positions, heads.
TOKEN_GRID = Grid(
    knots=(
        (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
        (0, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17),
        (0, 2, 4, 5, 6, 7),
    ),
    grows=(0, 1, 2),
)
# DeepSeek-V3 (arXiv:2412.19437, section 4.2): keys of 128 and rotated 64, values of 128, a latent of 512.
KEY, VALUE, LATENT, ROTATED = 192, 128, 512, 64


def prompt_roofline(gpu: Gpu, _variant: str) -> Roofline:
    """Return the longer of moving queries, keys, values and results once and of scoring causal pairs."""
    rate = operations_per_second(gpu, ("bf16",))

    def seconds(sequences: FloatArray, tokens: FloatArray, heads: FloatArray) -> FloatArray:
        moved = ACTIVATION_BYTES * sequences * tokens * heads * 2 * (KEY + VALUE) / gpu.memory_bytes_per_second
        return np.asarray(np.maximum(moved, sequences * heads * tokens * (tokens + 1) * (KEY + VALUE) / rate))

    return seconds


def token_roofline(gpu: Gpu, cache_format: str) -> Roofline:
    """Return the longer of reading the cached latents once and of scoring them for every head."""
    rate = operations_per_second(gpu, ("bf16",))

    def seconds(sequences: FloatArray, positions: FloatArray, heads: FloatArray) -> FloatArray:
        read = CACHE_BYTES[cache_format] * (LATENT + ROTATED) * sequences * positions / gpu.memory_bytes_per_second
        return np.asarray(np.maximum(read, 2 * sequences * heads * positions * (2 * LATENT + ROTATED) / rate))

    return seconds


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LatentAttention:
    """Latent attention of prompts with keys and values written out, or of tokens over the latents themselves."""

    surface: Surface
    evidence: Evidence

    def seconds(self, sequences: npt.ArrayLike, tokens: npt.ArrayLike, heads: npt.ArrayLike) -> FloatArray:
        """Return the seconds of one layer with one rank's heads; `tokens` are a prompt's, or positions looked back on.

        The products before and after are not in them.
        """
        return self.surface.seconds(sequences, tokens, heads)


def latent_prompt_attention(gpu: Gpu, engine: str) -> LatentAttention | None:
    """Return latent attention over prompts, None where no card was measured."""
    found = find(gpu, PROMPT, engine, [(name,) for name in CACHE_BYTES], PROMPT_GRID, prompt_roofline)
    return None if found is None else LatentAttention(surface=found[0], evidence=found[1])


def latent_token_attention(gpu: Gpu, engine: str, cache_format: str = "bfloat16") -> LatentAttention | None:
    """Return latent attention over a cache, None where no card was measured."""
    caches = [(name,) for name in dict.fromkeys((cache_format, *CACHE_BYTES))]
    found = find(gpu, TOKEN, engine, caches, TOKEN_GRID, token_roofline)
    return None if found is None else LatentAttention(surface=found[0], evidence=found[1])

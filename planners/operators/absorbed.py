"""The two batched products that latent attention absorbs into a token's query and output, a head at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators.formats import FORMATS, operations_per_second
from plimsoll.planners.operators.surface import FloatArray, Grid, Roofline, Surface
from plimsoll.planners.operators.tables import Evidence, find

OPERATOR = "absorbed_products"
# Tokens, heads of one rank.
GRID = Grid(knots=((0, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14), (0, 1, 2, 3, 4, 5, 6, 7)), grows=(0, 1))
ACTIVATION_BYTES = 2
# DeepSeek-V3's, the only ones measured: a head's features without angles, as many of its values, and the latent's.
HEAD_SIZE, LATENT_SIZE = 128, 512
PLAIN = "bfloat16"


def roofline(gpu: Gpu, number_format: str) -> Roofline:
    """Return the longer of moving both weights and their activations once and of multiplying."""
    weight = FORMATS[number_format]
    rate = operations_per_second(gpu, weight.arithmetic)

    def seconds(tokens: FloatArray, heads: FloatArray) -> FloatArray:
        weights = 2 * heads * HEAD_SIZE * LATENT_SIZE
        activations = ACTIVATION_BYTES * tokens * heads * 2 * (HEAD_SIZE + LATENT_SIZE)
        moved = (weight.weight_bytes * weights + activations) / gpu.memory_bytes_per_second
        return np.asarray(np.maximum(moved, 2 * tokens * weights / rate))

    return seconds


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AbsorbedProducts:
    """A layer's products of queries with the keys' weights and of outputs with the values'."""

    surface: Surface
    evidence: Evidence

    def seconds(self, tokens: npt.ArrayLike, heads: npt.ArrayLike) -> FloatArray:
        """Return the seconds of both, for all tokens of a step and one rank's heads."""
        return self.surface.seconds(tokens, heads)


def absorbed_products(gpu: Gpu, engine: str) -> AbsorbedProducts | None:
    """Return the products, None where no card was measured.

    Engines unpack these weights to 16 bits where a checkpoint in fp8 has scales by blocks (vllm, mla_attention.py,
    get_and_maybe_dequant_weights; sglang, deepseek_v2.py, block_quant_dequant; tensorrt_llm, model_config.py, which
    excludes kv_b_proj from its products in fp8).
    """
    found = find(gpu, OPERATOR, engine, [(PLAIN,)], GRID, roofline)
    return None if found is None else AbsorbedProducts(surface=found[0], evidence=found[1])

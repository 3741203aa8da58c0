"""One rank's fused experts: their products and the weighted sum, without the router and the exchange between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators.formats import FORMATS, operations_per_second
from plimsoll.planners.operators.surface import FloatArray, Grid, Roofline, Surface
from plimsoll.planners.operators.tables import Evidence, find

OPERATOR = "experts"
# Experts touched, rows of each of them, elements of one of their matrices, hidden features for each inner one.
GRID = Grid(
    knots=(
        (0, 2, 4, 5, 6, 7, 8, 9),
        (0, 1, 2, 3, 4, 6, 8, 10, 13, 16),
        (15, 18, 20, 21, 22, 23, 24, 26),
        (-2, 0, 1, 2, 4),
    ),
    grows=(0, 1, 2),
    shares=(1,),
)
ACTIVATION_BYTES = 2
# What a row of a tile without tokens reads and writes around its two products in 8 bits: of each hidden feature its
# 8-bit input is read and its 16-bit output written, of each inner one gate, up and their 8-bit product are both.
HIDDEN_BYTES_PER_TILE_ROW = 1 + 2
INNER_BYTES_PER_TILE_ROW = 2 * (2 * 2 + 1)
# What Hopper's L2 cache gives: 5,120 bytes a clock as A100's (NVIDIA, A100 Tensor Core GPU architecture whitepaper) at
# 1.98 GHz, of which 0.7 is taken to be reached, as of memory.
L2_BYTES_PER_SECOND = 0.7 * 5120 * 1.98e9
GATED, PLAIN = "gated", "plain"
# Kernels of engines: NVIDIA's generated ones for Blackwell (in FlashInfer), Triton's, CUTLASS's, Marlin's for weights
# of 4 bits, DeepGEMM's. Which one an engine takes is its own affair; the first that was measured stands for it.
KERNELS = ("generated", "triton", "cutlass", "marlin", "deepgemm")
# TensorRT-LLM's tables have none of its generated kernels, which are the same as in vLLM and SGLang. Triton's are not:
# with SGLang's in place, gpt-oss-120b on H200 comes out up to twice as slow as TensorRT-LLM runs it.
SHARED = "generated"
# An expert's matrices: gate, up and down, or up and down.
MATRICES = {GATED: 3, PLAIN: 2}
# What stands in for a format that a card was not measured with.
ALIKE = {
    "fp8": ("fp8", "fp8_block"),
    "fp8_block": ("fp8_block", "fp8"),
    "w4a16_mxfp4": ("w4a16_mxfp4", "int4_wo"),
    "w4a8_mxfp4_mxfp8": ("w4a8_mxfp4_mxfp8", "nvfp4", "w4a16_mxfp4"),
    "nvfp4": ("nvfp4", "w4a16_mxfp4", "int4_wo"),
}
UNQUANTIZED = "bfloat16"


def roofline(gpu: Gpu, variant: str) -> Roofline:
    """Return the longer of moving the touched experts and their rows' activations once and of multiplying."""
    number_format, kind, _ = variant.split(",")
    weight, matrices = FORMATS[number_format], MATRICES[kind]
    rate = operations_per_second(gpu, weight.arithmetic)

    def seconds(experts: FloatArray, rows: FloatArray, matrix: FloatArray, shape: FloatArray) -> FloatArray:
        hidden, inner = np.sqrt(matrix * shape), np.sqrt(matrix / shape)
        activations = ACTIVATION_BYTES * rows * (3 * hidden + 4 * inner)
        moved = experts * (matrices * weight.weight_bytes * matrix + activations) / gpu.memory_bytes_per_second
        return np.asarray(np.maximum(moved, 2 * matrices * experts * rows * matrix / rate))

    return seconds


def variant(number_format: str, kind: str, kernel: str) -> str:
    """Return the name of a kernel's variant: the weights' format, whether experts are gated, and whose kernel it is."""
    return f"{number_format},{kind},{kernel}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Experts:
    """Experts with weights of one format on one card, as one engine computes them."""

    surface: Surface
    evidence: Evidence

    def seconds(
        self, experts: npt.ArrayLike, rows: npt.ArrayLike, hidden: npt.ArrayLike, inner: npt.ArrayLike
    ) -> FloatArray:
        """Return the seconds of one layer on one rank that touches so many of its experts.

        `rows` are all that the rank's experts work on together, a token's once for each expert it goes to;
        `inner` is what of an expert's inner features lies on the rank.
        """
        touched_experts = np.maximum(np.asarray(experts, dtype=np.float64), 1.0)
        each = np.maximum(np.asarray(rows, dtype=np.float64) / touched_experts, 1.0)
        h, i = np.asarray(hidden, dtype=np.float64), np.asarray(inner, dtype=np.float64)
        return self.surface.seconds(touched_experts, each, h * i, h / i)

    def walked_seconds(
        self,
        touched_experts: npt.ArrayLike,
        rows: npt.ArrayLike,
        hidden: npt.ArrayLike,
        inner: npt.ArrayLike,
        *,
        experts: float,
        tile_rows: int,
        memory_bytes_per_second: float,
    ) -> FloatArray:
        """Return the seconds of a kernel that walks a tile of rows for each of the rank's `experts`, touched or not.

        DeepGEMM's contiguous products load both operands of a tile that has no rows, multiply nothing and write the
        result (deep_gemm/common/scheduler.cuh: such a tile's expert is -1, and max(0, -1) is the first one, whose
        weights lie in the L2 cache by then). So memory gives the touched experts once and the rows of all tiles; the
        cache gives each tile without rows an expert's matrices and as many bytes of rows, which each of their 128
        columns loads anew. No table has it. All layers of Qwen3-235B-A22B in fp8 take 42 ms so on two H200 and 26 on
        four; by public runs, less 10 ms for all else, about 43 and 26.
        """
        h, i = np.asarray(hidden, dtype=np.float64), np.asarray(inner, dtype=np.float64)
        padded = np.maximum(experts - np.asarray(touched_experts, dtype=np.float64), 0.0)
        cached = padded * 2 * MATRICES[GATED] * h * i / L2_BYTES_PER_SECOND
        moved = experts * tile_rows * (HIDDEN_BYTES_PER_TILE_ROW * h + INNER_BYTES_PER_TILE_ROW * i)
        read = self.seconds(touched_experts, rows, hidden, inner)
        return np.asarray(read + cached + moved / memory_bytes_per_second)


def experts(
    gpu: Gpu, engine: str, number_format: str, *, is_gated: bool = True, kernels: Sequence[str] = KERNELS
) -> Experts:
    """Return experts of a format, by the nearest that was measured.

    The asked engine's own come first, in the order of `kernels`, but for one that every engine has of one library.
    Raises `KeyError` at an unknown format.
    """
    kind = GATED if is_gated else PLAIN
    formats = (*ALIKE.get(number_format, (number_format,)), UNQUANTIZED)
    kinds = dict.fromkeys((kind, GATED))
    wanted = [
        *([[variant(number_format, kind, SHARED)]] if kernels[0] == SHARED and number_format in FORMATS else []),
        *([variant(name, each, kernel) for kernel in kernels] for name in formats for each in kinds),
    ]
    found = find(gpu, OPERATOR, engine, wanted, GRID, roofline)
    if found is None:
        raise KeyError(number_format)
    return Experts(surface=found[0], evidence=found[1])

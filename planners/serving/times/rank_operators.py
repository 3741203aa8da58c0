"""What one rank computes for the tokens of a step but its attention: products, experts, small kernels.

Each is priced by a measured surface (`planners/operators`) over the tokens of the step, all layers together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from plimsoll.planners.architecture import Block, ModelSpec, Operation, OperationKind, Region
from plimsoll.planners.architecture.weight import Part
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.operators.experts import KERNELS
from plimsoll.planners.operators.experts import experts as expert_surface
from plimsoll.planners.operators.products import products
from plimsoll.planners.operators.routing import Popularity, Routing, touched
from plimsoll.planners.operators.sparse_latent import FAMILIES
from plimsoll.planners.operators.tables import Evidence
from plimsoll.planners.quantization.stacks import BY_EVERY_STACK
from plimsoll.planners.serving.formats.operand_formats import PLAIN, OperandFormats
from plimsoll.planners.serving.formats.weight_format import WeightFormat
from plimsoll.planners.serving.releases.expert_kernels import ExpertKernel, expert_kernel
from plimsoll.planners.serving.times.curve import SIZES, FloatArray

ACTIVATION_BYTES = 2
# Tensors that a small kernel reads and writes of its output's width: a norm the residual stream beside its input.
NORM_TENSORS, OTHER_TENSORS = 4, 3
SMALL = frozenset({OperationKind.NORM, OperationKind.ROTARY, OperationKind.ACTIVATION, OperationKind.GATED_ACTIVATION})
# The two products of experts, by which engines multiply them.
EXPERT_KERNELS = 2
# Of experts in order of their popularity the n-th gets n to the minus 0.7 as many tokens as the first, and ranks have
# experts of all kinds alike. With their models left out, public runs of mixtures are 12.5 % off so and 13.0 % with even
# routing; exponents of 0.4 and 0.9 are 0.3 and 0.5 points worse.
ROUTING = Routing(popularity=Popularity.ZIPF, exponent=0.7)
KEYS_AND_VALUES = frozenset({"key_projection", "value_projection"})
# Made of latents by attention itself, where a prompt is computed, and of a token not at all.
LATENT_UP = "key_value_up"
QUERY_LATENT = "query_down"
MOST_KEPT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One tensor rank of a model on a card: what its operators' seconds depend on but for how many tokens there are.

    `operators_engine` is the engine whose kernels are measured, `release` its release, `expert_backend` what it was
    told to compute experts with. With `copies_attention` ranks have requests of their own.
    """

    model: ByIdentity[ModelSpec]
    gpu: ByIdentity[Gpu]
    operators_engine: str
    release: str
    weights: WeightFormat
    formats: OperandFormats
    tensor_parallel: int
    copies_attention: bool = False
    expert_backend: str | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Priced:
    """Seconds of operators at each of `SIZES`, how many kernels they are, and what their times rest on."""

    seconds: FloatArray
    kernels: int
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """One product; `is_within` a block of attention that was measured whole."""

    outputs: float
    inputs: float
    number_format: str
    repeats: int
    is_within: bool


@lru_cache(maxsize=MOST_KEPT)
def dense_operators(rank: Rank) -> Priced:
    """Return a rank's products and small kernels over a step's tokens: all but attention, experts and the head."""
    model, gpu = rank.model.value, rank.gpu.value
    found = [each for block in model.layers for each in _products(block, rank) if not each.is_within]
    seconds, evidence = _products_seconds(found, rank, SIZES)
    small = [
        (operation, block) for block in model.layers for operation in block.operations if _is_small(operation, block)
    ]
    moved = sum(block.repeats * _small_bytes(operation, block, rank) for operation, block in small)
    return Priced(
        seconds=seconds + SIZES * moved / gpu.memory_bytes_per_second,
        kernels=sum(each.repeats for each in found) + sum(block.repeats for _, block in small),
        evidence=evidence,
    )


def _products_seconds(
    found: Sequence[_Product], rank: Rank, rows: FloatArray
) -> tuple[FloatArray, tuple[Evidence, ...]]:
    """Return the seconds of products with so many rows each, all together, and what they rest on."""
    seconds = np.zeros_like(rows)
    evidence = []
    for number_format in dict.fromkeys(each.number_format for each in found):
        of_format = [each for each in found if each.number_format == number_format]
        kernel = products(rank.gpu.value, rank.operators_engine, number_format)
        shapes = [(each.outputs, each.inputs) for each in of_format]
        outputs, inputs = (np.array(sizes)[:, None] for sizes in zip(*shapes, strict=True))
        repeats = np.array([each.repeats for each in of_format])
        seconds += _plain(rank, number_format) * (repeats @ kernel.seconds(rows[None, :], outputs, inputs))
        evidence.append(kernel.evidence)
    return seconds, tuple(evidence)


@lru_cache(maxsize=MOST_KEPT)
def within_blocks_seconds(rank: Rank, rows: float) -> float:
    """Return the seconds over so many tokens of all products that decode steps have within whole blocks."""
    found = [each for block in rank.model.value.layers for each in _products(block, rank) if each.is_within]
    return float(_products_seconds(found, rank, np.array([rows]))[0][0])


@lru_cache(maxsize=MOST_KEPT)
def head_seconds(rank: Rank) -> FloatArray:
    """Return the seconds of the product that makes logits, over the sequences that get one."""
    model = rank.model.value
    shape = next(each.matmul_shape for each in model.head.operations if each.matmul_shape is not None)
    outputs = math.ceil(shape[1] / rank.tensor_parallel)
    kernel = products(rank.gpu.value, rank.operators_engine, PLAIN)
    return np.asarray(_plain(rank, PLAIN) * kernel.seconds(SIZES, outputs, shape[0]))


def _plain(rank: Rank, number_format: str) -> float:
    return rank.formats.plain_factor if number_format == PLAIN else 1.0


def _products(block: Block, rank: Rank) -> Iterator[_Product]:
    """Yield a layer's products as engines do them: those of one input at once, their matrices side by side."""
    is_whole = measured_family(block) is not None
    together: dict[tuple[tuple[str, ...], Region, float, str, bool], float] = {}
    for operation in block.operations:
        if operation.matmul_shape is None or part_of(operation) is Part.EXPERT or operation.name == LATENT_UP:
            continue
        inputs, outputs = _local_shape(operation, rank)
        is_within = is_whole and part_of(operation) is Part.ATTENTION
        key = (operation.inputs, operation.region, inputs, format_of(operation, rank), is_within)
        together[key] = together.get(key, 0.0) + outputs
    for (_, _, inputs, number_format, is_within), outputs in together.items():
        yield _Product(
            outputs=outputs,
            inputs=inputs,
            number_format=number_format,
            repeats=block.repeats,
            is_within=is_within,
        )


def measured_family(block: Block) -> str | None:
    """Return the family of models whose blocks of sparse latent attention were measured whole as this layer's.

    Those have their products, angles and indexer in their time.
    """
    shapes = {each.name: each.matmul_shape for each in block.operations if each.matmul_shape is not None}
    is_sparse = any(each.window for each in block.operations) and LATENT_UP in shapes
    return FAMILIES.get(shapes.get(QUERY_LATENT, (0, 0))) if is_sparse else None


def _local_shape(operation: Operation, rank: Rank) -> tuple[float, float]:
    """Return what of a product's inputs and outputs one rank has; a head of keys is never cut."""
    inputs, outputs = map(float, operation.matmul_shape or (0, 0))
    outputs *= operation.copies
    if operation.region is Region.SEQUENCE:
        return inputs, outputs
    if operation.is_row_parallel:
        return inputs / rank.tensor_parallel, outputs
    if operation.name in KEYS_AND_VALUES:
        heads = max(1, rank.model.value.key_value_heads)
        return inputs, outputs / heads * math.ceil(heads / rank.tensor_parallel)
    return inputs, outputs / rank.tensor_parallel


def part_of(operation: Operation) -> Part:
    """Return whose weights an operation of a layer multiplies by."""
    first = operation.name.partition("_")[0]
    named = {"router": Part.ROUTER, "expert": Part.EXPERT, "shared": Part.SHARED_EXPERT, "feed": Part.FEED_FORWARD}
    return named.get(first, Part.ATTENTION)


def format_of(operation: Operation, rank: Rank) -> str:
    """Return the format of a product's matrix, the plain one where the weights' format leaves that part alone."""
    part, stack = part_of(operation), rank.weights.stack_of(rank.model.value)
    if stack is None or part in BY_EVERY_STACK or part in stack.leaves_alone:
        return PLAIN
    return rank.formats.dense


def _is_small(operation: Operation, block: Block) -> bool:
    """Return whether an operation is a small kernel of its own; a block measured whole has its rotation within."""
    is_within = operation.kind is OperationKind.ROTARY and measured_family(block) is not None
    return operation.kind in SMALL and not is_within


def _small_bytes(operation: Operation, block: Block, rank: Rank) -> float:
    """Return what a small kernel reads and writes for each token."""
    tensor = next((each for each in block.tensors if each.name == operation.output), None)
    if tensor is None:
        return 0.0
    width = tensor.width / (rank.tensor_parallel if tensor.region is Region.TENSOR else 1)
    moved = NORM_TENSORS if operation.kind is OperationKind.NORM else OTHER_TENSORS
    return moved * width * ACTIVATION_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Experts:
    """One mixture's experts as a rank has them: `local` of them, `inner` of each one's inner features."""

    experts: int
    local: float
    hidden: float
    inner: float
    is_gated: bool


@lru_cache(maxsize=MOST_KEPT)
def expert_operators(rank: Rank, expert_parallel: int, expert_tensor_parallel: int) -> Priced | None:
    """Return a rank's experts over the tokens of a step of all ranks of its stage, None where a model has none."""
    seconds, kernels = np.zeros_like(SIZES), 0
    evidence: list[Evidence] = []
    for block in rank.model.value.layers:
        mixture = _experts_of(block, expert_parallel, expert_tensor_parallel)
        if mixture is None:
            continue
        each, measured = _mixture_seconds(mixture, rank, expert_parallel)
        seconds += block.repeats * _plain(rank, rank.formats.experts) * each
        kernels += block.repeats * EXPERT_KERNELS
        evidence.extend(measured)
    return Priced(seconds=seconds, kernels=kernels, evidence=tuple(dict.fromkeys(evidence))) if evidence else None


def _experts_of(block: Block, expert_parallel: int, expert_tensor_parallel: int) -> _Experts | None:
    experts = max((weight.experts for weight in block.weights), default=1)
    if experts == 1:
        return None
    inner, hidden = next(
        operation.matmul_shape
        for operation in block.operations
        if operation.output == "expert_output" and operation.matmul_shape is not None
    )
    return _Experts(
        experts=experts,
        local=experts / expert_parallel,
        hidden=hidden,
        inner=inner / expert_tensor_parallel,
        is_gated=any(operation.name == "expert_gate_projection" for operation in block.operations),
    )


def _mixture_seconds(mixture: _Experts, rank: Rank, expert_parallel: int) -> tuple[FloatArray, tuple[Evidence, ...]]:
    """Return one mixture's seconds at each of `SIZES`, by the kernel that the engine's release takes for so many."""
    chosen = [
        expert_kernel(
            rank.operators_engine,
            rank.release,
            rank.gpu.value,
            rank.formats.experts,
            tokens=tokens,
            inner=mixture.inner,
            tensor_ranks=rank.tensor_parallel,
            splits_experts=expert_parallel > 1,
            copies_attention=rank.copies_attention,
            backend=rank.expert_backend,
        )
        for tokens in SIZES.tolist()
    ]
    seconds = np.zeros_like(SIZES)
    evidence = []
    for kernel in dict.fromkeys(chosen):
        found, measured = _kernel_seconds(mixture, rank, expert_parallel, kernel)
        seconds = np.where([each == kernel for each in chosen], found, seconds)
        evidence.append(measured)
    return seconds, tuple(evidence)


def _kernel_seconds(
    mixture: _Experts, rank: Rank, expert_parallel: int, kernel: ExpertKernel | None
) -> tuple[FloatArray, Evidence]:
    names = KERNELS if kernel is None else (*kernel.kernels, *KERNELS)
    gpu, per_token = rank.gpu.value, rank.model.value.experts_per_token
    surface = expert_surface(
        gpu, rank.operators_engine, rank.formats.experts, is_gated=mixture.is_gated, kernels=tuple(dict.fromkeys(names))
    )
    rows = SIZES * per_token / expert_parallel
    local = touched(SIZES, mixture.experts, per_token, routing=ROUTING) / expert_parallel
    if kernel is not None and kernel.tile_rows:
        seconds = surface.walked_seconds(
            local,
            rows,
            mixture.hidden,
            mixture.inner,
            experts=mixture.local,
            tile_rows=kernel.tile_rows,
            memory_bytes_per_second=gpu.memory_bytes_per_second,
        )
    else:
        seconds = surface.seconds(local, rows, mixture.hidden, mixture.inner)
    return seconds, surface.evidence

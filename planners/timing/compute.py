"""Operations to seconds: a roofline for each kind of work.

A matrix product runs at a fraction of the peak that falls for small sides as it
was measured (`products.py`), attention at its kernel's fraction, everything else at
the memory's rate. The backward pass of a product is two products, one where the
weight is frozen.

Sums over the operations of a block are formed once for each distinct
tensor-parallel degree and spread over the layouts: matrix products at powers of
two of tokens, all other work as tokens · (S/t_s + T/t).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.architecture import Block, Operation, OperationKind
from plimsoll.planners.ground.hardware import Gpu, Hardware
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.job import BlockWeights, Job
from plimsoll.planners.jobs.recompute_modules import again
from plimsoll.planners.layouts.candidates import Candidates, FloatArray, once
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.layouts.experts import busiest_rank_multiple, expert_tensor_ranks
from plimsoll.planners.layouts.module_sets import by_module_set
from plimsoll.planners.timing.collectives import NO_SECONDS
from plimsoll.planners.timing.efficiency import Efficiency, GpuEfficiency
from plimsoll.planners.timing.fusion import saved_bytes
from plimsoll.planners.timing.products import (
    EIGHT_BITS,
    FLAT,
    SIXTEEN_BITS,
    ProductShapes,
    places,
    product_lines,
    product_shapes,
)
from plimsoll.planners.timing.recurrent import chunked_flops
from plimsoll.planners.timing.unpacking import unpacking_seconds

# Formats of a byte and less: their products take scaling and casting that 16-bit ones do not, and attention stays at
# 16 bits (Micikevicius et al. 2022, arXiv:2209.05433; Transformer Engine's recipes).
LOW_PRECISION_FORMATS = ("fp8", "mxfp4", "nvfp4")
ATTENTION_FORMAT = "bf16"
# The product writes the scores; a fused softmax reads and writes them, dropout again, and the second product reads them
# (Megatron-LM's CoreAttention with its fused scale-mask-softmax).
EAGER_SCORE_PASSES = 6.0
# Sums over the operations of a block, kept between searches: a few kinds of layers of some hundred models.
MOST_KEPT_SUMS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """One layer (or the head) and one micro-batch on one rank."""

    forward: FloatArray
    backward: FloatArray
    attention: FloatArray


def layer_seconds(
    part: BlockWeights, layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency
) -> LayerSeconds:
    """Return the seconds of one block's operations."""
    clock = _clock(layouts, job, ByIdentity(hardware), ByIdentity(efficiency))
    work, experts = _work(ByIdentity(part.block.operations)), _most_experts(ByIdentity(part.block))
    products, products_backward = clock.products(work.products, experts, is_frozen=bool(part.frozen))
    attention = clock.attention(work.scores)
    moved = clock.moved(work.others, part.block)
    unpacking = unpacking_seconds(part, layouts, job, hardware, efficiency)
    attention_backward = efficiency.common.attention_backward_multiple
    scan_forward, scan_backward = clock.beyond_moving(work.scans, part.block, attention_backward)
    forward = products + attention + moved + unpacking + scan_forward
    backward = products_backward + attention_backward * attention + 2.0 * moved + unpacking + scan_backward
    return LayerSeconds(forward=forward, backward=backward, attention=attention)


def selective_recompute_seconds(
    part: BlockWeights, own: LayerSeconds, layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency
) -> FloatArray:
    """Return what selective recomputation does again of one block: modules, the scores, or all but some products.

    Who names modules has attention among them without being told to, and runs it again although flash attention keeps
    no scores (Megatron-Core 0.16.1, transformer/transformer_config.py and attention.py, `checkpoint_core_attention`).
    """
    clock = _clock(layouts, job, ByIdentity(hardware), ByIdentity(efficiency))
    experts = _most_experts(ByIdentity(part.block))

    def of_set(number: int) -> FloatArray:
        modules = job.module_sets[number]
        if modules:
            return _of_modules(part.block, modules, experts, clock, job)
        return _by_policy(part, own, experts, clock, job)

    return by_module_set(layouts, of_set)


def _by_policy(part: BlockWeights, own: LayerSeconds, experts: int, clock: _Clock, job: Job) -> FloatArray:
    """Return what is done again of a block where no modules are named."""
    policy = job.profile.can.selective_policy
    if policy == "attention_scores":
        is_repeated = job.attention == "eager" or "modules" in job.profile.can.recompute
        return own.attention if is_repeated else np.zeros(1)
    if policy != "alternate_matmuls":
        return np.zeros(1)
    kept, _ = clock.products(_work(ByIdentity(part.block.operations)).alternate, experts)
    return own.forward - own.attention - kept


@functools.lru_cache(maxsize=MOST_KEPT_SUMS)
def _most_experts(same: ByIdentity[Block]) -> int:
    """Return how many experts a layer of the block has; 1 for a dense one."""
    return max((weight.experts for weight in same.value.weights), default=1)


@dataclass(frozen=True, slots=True)
class _Work:
    """Operations by how their time is worked out; `alternate` are every other product, `scans` some of the others."""

    products: tuple[Operation, ...]
    alternate: tuple[Operation, ...]
    scores: tuple[Operation, ...]
    others: tuple[Operation, ...]
    scans: tuple[Operation, ...]


@functools.lru_cache(maxsize=MOST_KEPT_SUMS)
def _work(same: ByIdentity[tuple[Operation, ...]]) -> _Work:
    products = tuple(operation for operation in same.value if operation.kind is OperationKind.MATMUL)
    worked = (OperationKind.MATMUL, OperationKind.ATTENTION)
    return _Work(
        products=products,
        alternate=products[::2],
        scores=tuple(operation for operation in same.value if operation.kind is OperationKind.ATTENTION),
        others=tuple(operation for operation in same.value if operation.kind not in worked),
        scans=tuple(operation for operation in same.value if operation.scan is not None),
    )


@functools.lru_cache(maxsize=MOST_KEPT_SUMS)
def _again(same: ByIdentity[Block], modules: tuple[str, ...], *, fuses_norms: bool) -> tuple[Operation, ...]:
    return again(same.value, modules, fuses_norms=fuses_norms)


def _of_modules(block: Block, modules: tuple[str, ...], experts: int, clock: _Clock, job: Job) -> FloatArray:
    """Return what the named parts of a layer take again."""
    fuses_norms = job.profile.kernels.transformer_engine
    work = _work(ByIdentity(_again(ByIdentity(block), modules, fuses_norms=fuses_norms)))
    products, _ = clock.products(work.products, experts)
    result: FloatArray = products + clock.attention(work.scores) + clock.moved(work.others, block)
    return result


@once
def _clock(layouts: Candidates, job: Job, hardware: ByIdentity[Hardware], efficiency: ByIdentity[Efficiency]) -> _Clock:
    return _Clock(layouts, job, hardware.value, efficiency.value)


class _Clock:
    """Knows how long operations take on one rank of every layout."""

    def __init__(self, layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> None:
        self._job = job
        self._gpu = efficiency.gpu
        self._tokens = layouts.local_tokens(job.sequence_length)
        self._tensor = layouts.tensor_parallel.astype(np.float64)
        adds = efficiency.stack.adds_gradients_in_products
        self._gradient_bytes = 2.0 * (job.states.accumulator or job.states.gradient) if adds else 0.0
        # Its product adds to an expert's gradient, which is read for that, or writes a new one.
        gradient_passes = 2.0 if adds else 1.0
        self._expert_element_bytes = efficiency.stack.expert_weight_multiple * (
            2.0 * job.precision.compute_bytes + gradient_passes * job.states.gradient
        )
        self._busiest = busiest_rank_multiple(layouts, job)
        # Over how many ranks a layer's experts are divided, beyond those that divide its other matrices.
        self._expert_ranks: FloatArray | float = 1.0
        if job.model.experts_per_token:
            ranks = expert_tensor_ranks(layouts, job)
            self._expert_ranks = layouts.expert_parallel * ranks / layouts.tensor_parallel
        degrees, self._degree = distinct(layouts.tensor_parallel)
        self._degrees = tuple(degrees.tolist())
        self._place = places(self._tokens, self._degree)
        # The busiest rank's share of the copies that tokens send to experts, as tokens.
        self._routed_tokens, self._routed_place = self._tokens, self._place
        if job.model.experts_per_token:
            self._routed_tokens = self._tokens * self._busiest
            self._routed_place = places(self._routed_tokens, self._degree)
        self._sequence_division = np.where(layouts.sequence_parallel, self._tensor, 1.0)
        rates, wanted = hardware.gpu.peak_flops_per_second, job.precision.compute_format
        is_low = wanted in LOW_PRECISION_FORMATS
        fraction = self._gpu.low_precision_peak_fraction if is_low else self._gpu.matmul_peak_fraction
        self._product_rate = rates[wanted] * fraction
        self._shapes = shapes_of(hardware.gpu, self._gpu, is_low=is_low)
        attention_peak = rates[ATTENTION_FORMAT if is_low else wanted]
        self._attention_rate = attention_peak * self._gpu.attention_peak_fraction * efficiency.stack.attention_multiple
        self._square_rate = attention_peak * self._gpu.matmul_peak_fraction
        self._memory_rate = hardware.gpu.memory_bytes_per_second * self._gpu.memory_bandwidth_fraction
        self._traffic_multiple = efficiency.stack.traffic_multiple
        self._measured_kernels = efficiency.stack.measured_kernels
        # Under a causal mask a token attends to half the sequence and itself.
        self._context = (job.sequence_length + 1) / 2

    def products(
        self, operations: tuple[Operation, ...], experts: int, *, is_frozen: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        """Return the forward and the backward seconds of matrix products together.

        `experts` is how many experts a layer has in all: a rank moves the weights of
        every one of its own, however few tokens come to it.
        """
        forward, backward = self._computed(operations, is_routed=False, is_frozen=is_frozen)
        if not is_frozen:
            backward = backward + self._gradient_seconds(operations)
        if experts > 1:
            routed = self._computed(operations, is_routed=True, is_frozen=is_frozen)
            weights = self._expert_weight_seconds(operations) * (experts / self._expert_ranks)
            forward = forward + routed[0] + weights
            backward = backward + routed[1] + weights * (1.0 if is_frozen else 2.0)
        return forward, backward

    def _computed(
        self, operations: tuple[Operation, ...], *, is_routed: bool, is_frozen: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Return the forward and the backward seconds of multiplying; of frozen weights one gradient is left."""
        lines = product_lines(ByIdentity(operations), self._degrees, ByIdentity(self._shapes), is_routed=is_routed)
        if lines is None:
            return NO_SECONDS, NO_SECONDS
        tokens, place = (self._routed_tokens, self._routed_place) if is_routed else (self._tokens, self._place)
        forward = lines.forward.at(tokens, place) / self._product_rate
        if is_frozen:
            return forward, forward
        return forward, lines.backward.at(tokens, place) / self._product_rate

    def _gradient_seconds(self, operations: Sequence[Operation]) -> FloatArray:
        """Return the reading and writing of a sum of gradients that products add to, of weights that all tokens share.

        The product's last step does it, once a micro-batch, when there is nothing left to multiply.
        """
        if not self._gradient_bytes:
            return NO_SECONDS
        shapes = (op.matmul_shape for op in operations if op.copies == 1 and op.matmul_shape)
        elements = sum(inputs * outputs for inputs, outputs in shapes)
        result: FloatArray = elements * self._gradient_bytes / self._tensor / self._memory_rate
        return result

    def _expert_weight_seconds(self, operations: Sequence[Operation]) -> FloatArray:
        """Return a third of what one expert's matrices take to cross memory in both passes, with their gradients.

        A third because the backward pass takes two more of whatever the forward pass does.
        """
        elements = sum(
            op.matmul_shape[0] * op.matmul_shape[1] for op in operations if op.copies > 1 and op.matmul_shape
        )
        result: FloatArray = elements * self._expert_element_bytes / 3.0 / self._tensor / self._memory_rate
        return result

    def attention(self, operations: tuple[Operation, ...]) -> FloatArray:
        """Return the forward seconds of scores, softmax and weighted sums."""
        if not operations:
            return np.zeros(1)
        flops = sum(operation.forward_flops_per_token(self._context) for operation in operations)
        local = flops * self._tokens / self._tensor
        if self._job.attention == "flash":
            result: FloatArray = local / self._attention_rate
            return result
        # Eager attention multiplies the whole square and moves its scores through memory.
        heads = sum(operation.heads for operation in operations)
        scores = heads * self._tokens * self._job.sequence_length / self._tensor
        size = max(self._job.profile.kernels.eager_score_bytes, self._job.precision.compute_bytes)
        products = self._whole_square(operations) * self._tokens / self._tensor / self._square_rate
        eager: FloatArray = products + scores * (EAGER_SCORE_PASSES * size / self._memory_rate)
        return eager

    def _whole_square(self, operations: Sequence[Operation]) -> float:
        """Return the operations of a token with every position, whatever mask or window hides some of them."""
        return sum(
            2.0 * op.heads * (op.key_dim + op.value_dim) * self._job.sequence_length / op.tokens_per_position
            for op in operations
        )

    def beyond_moving(
        self, scans: tuple[Operation, ...], block: Block, backward_multiple: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return what recurrences' products within chunks take longer than moving their operands, in either pass."""
        flops = chunked_flops(scans)
        if not flops:
            return np.zeros(1), np.zeros(1)
        chunked, carried = flops * self._tokens / self._tensor / self._attention_rate, self.moved(scans, block)
        return (
            np.maximum(chunked - carried, 0.0),
            np.maximum(backward_multiple * chunked - 2.0 * carried, 0.0),
        )

    def moved(self, operations: tuple[Operation, ...], block: Block) -> FloatArray:
        """Return the forward seconds of everything else: so much for each tensor read or written."""
        sequence, tensor = _moved_widths(ByIdentity(operations), ByIdentity(block))
        per_token = sequence / self._sequence_division + tensor / self._tensor
        once = per_token * self._job.precision.compute_bytes
        own = once * self._traffic_multiple
        saved = saved_bytes(operations, block, self._job.kernels, self._measured_kernels)
        if any(saved):
            fused = saved[0] / self._sequence_division + saved[1] / self._tensor
            # However much is fused, what goes in is read and what comes out is written.
            own = own - np.minimum(fused, np.maximum(own - once, 0.0))
        result: FloatArray = self._tokens * own / self._memory_rate
        return result


def shapes_of(card: Gpu, reached: GpuEfficiency, *, is_low: bool) -> ProductShapes:
    """Return how many times as long as a long product others take on a card, in 16 bits or in a format of fewer."""
    if not reached.measured_sizes:
        return FLAT
    return product_shapes(ByIdentity(card), EIGHT_BITS if is_low else SIXTEEN_BITS)


@functools.lru_cache(maxsize=MOST_KEPT_SUMS)
def _moved_widths(operations: ByIdentity[tuple[Operation, ...]], same: ByIdentity[Block]) -> tuple[int, int]:
    """Return the elements a token that operations read and write, of what the sequence divides and of what ranks do."""
    widths = {tensor.name: tensor.width for tensor in same.value.tensors}
    width = {"sequence": 0, "tensor": 0}
    for operation in operations.value:
        names = (*operation.inputs, operation.output)
        width[str(operation.region)] += sum(widths.get(name, 0) for name in names)
    return width["sequence"], width["tensor"]

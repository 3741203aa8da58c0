"""Bytes of a layer's parts that wait on the host, where a stack sends them part by part.

A tensor is sent whole if a rank has enough of it. Source: Megatron-Core 0.16.1, transformer/transformer_config.py,
`min_offloaded_tensor_size`; what parts there are: `planners/jobs/offload_modules.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from plimsoll.planners.architecture import Block
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.jobs.offload_modules import (
    EXPERT_ACTIVATION,
    MIXTURE_NORM,
    OF_EXPERTS,
    Division,
    Sent,
    back_at_attention,
    sent_by,
)
from plimsoll.planners.jobs.recompute_modules import CORE_ATTENTION
from plimsoll.planners.layouts.candidates import SELECTIVE, FloatArray, any_of
from plimsoll.planners.layouts.module_sets import by_module_set, module_sets
from plimsoll.planners.memory.activations import RESIDUAL
from plimsoll.planners.memory.rank_share import RankShare
from plimsoll.planners.memory.sequence_first import copied_output_bytes
from plimsoll.planners.memory.steps.on_rank import NO_BYTES

LEAST_SENT_ELEMENTS = 1024 * 1024  # min_offloaded_tensor_size
# As a rank sends them, and as it gets them from others.
TOKENS_OF_AN_EXCHANGE = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SentParts:
    """A rank's bytes of one layer and micro-batch: what goes to the host, and what the device is relieved of.

    `freed_in_experts` is that part of `freed` which experts keep. `back_at_attention` is what of the layer below has
    come back as this one's attention is differentiated. `emptied_input` is the layer's input, part of `freed`, where it
    is gone whoever names it, and `named_input` where it is not: a schedule names that of a stage, and the model's own
    code that of its first layer. `sent_last` is what of `freed` is there to the end of the layer's forward pass, and
    `at_experts` what stands there as its experts' last product is made: their halves and outputs.
    """

    sent: FloatArray
    freed: FloatArray
    freed_in_experts: FloatArray
    back_at_attention: FloatArray
    named_input: FloatArray
    sent_last: FloatArray
    at_experts: FloatArray
    emptied_input: FloatArray


NOTHING_SENT = SentParts(
    sent=NO_BYTES,
    freed=NO_BYTES,
    freed_in_experts=NO_BYTES,
    back_at_attention=NO_BYTES,
    named_input=NO_BYTES,
    sent_last=NO_BYTES,
    at_experts=NO_BYTES,
    emptied_input=NO_BYTES,
)


def sent_parts(block: Block, share: RankShare, job: Job) -> SentParts:
    """Return what a layer sends where activations are offloaded part by part, nothing where they are not."""
    if not any_of(share.layouts.activation_offload):
        return NOTHING_SENT
    parts = {number: _sent_beside(number, block, share, job) for number in module_sets(share.layouts)}
    if len(parts) == 1:
        return next(iter(parts.values()))

    def of(name: str) -> FloatArray:
        return by_module_set(share.layouts, lambda number: getattr(parts[number], name))

    return SentParts(**{each.name: of(each.name) for each in fields(SentParts)})


def _sent_beside(module_set: int, block: Block, share: RankShare, job: Job) -> SentParts:
    """Return what a layer sends beside one of the job's sets of recomputed modules."""
    of_rank = _OfRank(share, job, module_set)
    if not of_rank.modules:
        return NOTHING_SENT
    back = back_at_attention(block, of_rank.modules)

    def bytes_of(counted: Callable[[Sent], int]) -> FloatArray:
        return of_rank.total(block, counted)

    named_input = bytes_of(lambda each: each.freed if each.name == RESIDUAL and not each.empties else 0)
    return SentParts(
        sent=bytes_of(lambda each: each.times),
        freed=bytes_of(lambda each: each.freed) + of_rank.kernels_own(block),
        freed_in_experts=bytes_of(lambda each: each.freed if each.module in OF_EXPERTS else 0),
        back_at_attention=bytes_of(lambda each: each.freed if each.module in back else 0),
        named_input=named_input,
        sent_last=named_input + bytes_of(lambda each: each.freed if each.module == MIXTURE_NORM else 0),
        at_experts=bytes_of(lambda each: each.freed if each.module == EXPERT_ACTIVATION else 0)
        + of_rank.experts_outputs(block),
        emptied_input=bytes_of(lambda each: each.freed if each.name == RESIDUAL and each.empties else 0),
    )


def sent_bytes(block: Block, share: RankShare, job: Job) -> FloatArray:
    """Return all that a layer sends of a micro-batch where its activations are offloaded part by part."""
    return by_module_set(
        share.layouts, lambda number: _OfRank(share, job, number).total(block, lambda each: each.times)
    )


class _OfRank:
    """Adds up tensors that a rank sends, each as many times as is asked; one of which it has too little is not sent."""

    def __init__(self, share: RankShare, job: Job, module_set: int) -> None:
        self._layouts, self._job = share.layouts, job
        self.modules = job.offload_modules(module_set)
        self._recomputed = job.module_sets[module_set] or (CORE_ATTENTION,)
        self._is_selective = share.layouts.recompute == SELECTIVE
        of_experts = share.tokens * share.busiest
        self._tokens = {
            Division.SEQUENCE: share.tokens / share.sequence_division,
            Division.TENSOR: share.tokens / share.tensor,
            Division.DISPATCHED: of_experts / share.dispatch_division,
            Division.EXPERT: of_experts / share.tensor,
        }
        self._elements: dict[tuple[Division, int], FloatArray] = {}

    def total(self, block: Block, counted: Callable[[Sent], int]) -> FloatArray:
        """Return the bytes of a layer's tensors, each so many times; recomputed layers send others."""
        plain = self._total(block, (), counted)
        if not any_of(self._is_selective):
            return plain
        return np.where(self._is_selective, self._total(block, self._recomputed, counted), plain)

    def kernels_own(self, block: Block) -> FloatArray:
        """Return attention's output as its kernel keeps it, where the matrix behind it has a copy of its own."""
        size, several = self._job.precision.compute_bytes, self._layouts.micro_batch_size > 1
        copied = copied_output_bytes(
            block, self._job.profile.kernels, attention=self._job.attention, element_bytes=size
        )
        if not copied or not any_of(several):
            return NO_BYTES
        own = self.total(block, lambda each: int(each.is_kernels_own))
        return np.where(several, own, 0.0)

    def experts_outputs(self, block: Block) -> FloatArray:
        """Return what experts make of the tokens that a rank gets, beside those sent and received between ranks.

        Its caller names both until the experts are done (transformer/moe/moe_layer.py, `forward`).
        """
        width = sum(tensor.width for tensor in block.tensors if tensor.name == "dispatched")
        if not width:
            return NO_BYTES
        tensors = np.where(self._layouts.expert_parallel > 1, 1.0 + TOKENS_OF_AN_EXCHANGE, 1.0)
        size = self._job.precision.compute_bytes
        result: FloatArray = tensors * size * width * self._tokens[Division.DISPATCHED]
        return result

    def _total(self, block: Block, recomputed: tuple[str, ...], counted: Callable[[Sent], int]) -> FloatArray:
        size, total = self._job.precision.compute_bytes, NO_BYTES
        for each in sent_by(ByIdentity(block), self.modules, recomputed):
            times = counted(each)
            if times:
                width = FP32_BYTES if each.is_statistic else size
                total = total + times * width * self._sent_elements(each.division, each.features)
        return total

    def _sent_elements(self, division: Division, features: int) -> FloatArray:
        key = division, features
        if key not in self._elements:
            elements = features * self._tokens[division]
            self._elements[key] = np.where(elements >= LEAST_SENT_ELEMENTS, elements, 0.0)
        return self._elements[key]

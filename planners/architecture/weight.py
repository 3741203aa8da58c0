"""A weight: its name in the checkpoint, its shape, and how tensor parallelism splits it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """Where in the model a weight stands.

    `vision` is everything that brings images, and sound where a model hears, to the text's width.
    """

    EMBEDDING = "embedding"
    ATTENTION = "attention"
    FEED_FORWARD = "feed_forward"
    EXPERT = "expert"
    SHARED_EXPERT = "shared_expert"
    ROUTER = "router"
    RECURRENT = "recurrent"
    NORM = "norm"
    HEAD = "head"
    MULTI_TOKEN = "multi_token"  # noqa: S105 - not a password
    VISION = "vision"


class Split(StrEnum):
    """How tensor parallelism divides a weight (Shoeybi et al. 2019, arXiv:1909.08053).

    `column` divides the output features, so that each rank computes some of the
    outputs; `row` divides the input features, so that the ranks' outputs are
    summed by an all-reduce; `vocabulary` divides the rows of an embedding or
    head; `replicated` weights stand whole on every rank.
    """

    COLUMN = "column"
    ROW = "row"
    VOCABULARY = "vocabulary"
    REPLICATED = "replicated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One tensor of the checkpoint, or one for each layer and expert of a block.

    `name` may hold `{layer}` and `{expert}`. `dim` is the tensor dimension that
    `split` divides and `units` how many indivisible pieces lie along it (heads,
    key-value heads; 0 means single elements). Where one matrix holds several
    projections one after the other (queries, keys, values), `sections` has the length
    and the units of each along `dim`, which are split each on its own, as vLLM's
    QKVParallelLinear does. `is_linear` marks the matrix of a matrix
    multiplication, which is what quantization schemes and LoRA address.

    `experts` counts the experts it stands for: one tensor each, or, when
    `is_fused` is true, one tensor whose dimension 0 is the expert. `is_buffer`
    marks a tensor of the checkpoint that is no trainable parameter (a router's
    balancing bias).
    """

    name: str
    shape: tuple[int, ...]
    part: Part
    split: Split = Split.REPLICATED
    dim: int | None = None
    units: int = 0
    sections: tuple[tuple[int, int], ...] = ()
    experts: int = 1
    is_linear: bool = False
    is_fused: bool = False
    is_buffer: bool = False

    @property
    def tensors(self) -> int:
        """Return how many tensors of the checkpoint it stands for within one layer."""
        return 1 if self.is_fused else self.experts

    @property
    def elements(self) -> int:
        """Return the number of elements of all its tensors within one layer."""
        return math.prod(self.shape) * self.tensors

    def local_shape(self, tensor_parallel: int) -> tuple[int, ...]:
        """Return the shape of the largest shard on one tensor-parallel rank.

        Heads are dealt out whole; key-value heads fewer than the ranks are
        replicated, as Megatron and vLLM do; a vocabulary is cut in ceilings.
        """
        if self.dim is None or self.split is Split.REPLICATED or tensor_parallel == 1:
            return self.shape
        parts = self.sections or ((self.shape[self.dim], self.units),)
        local = sum(_local_length(length, units, tensor_parallel) for length, units in parts)
        return (*self.shape[: self.dim], local, *self.shape[self.dim + 1 :])


def _local_length(length: int, units: int, tensor_parallel: int) -> int:
    if not units:
        return -(-length // tensor_parallel)
    return length // units * -(-units // tensor_parallel)

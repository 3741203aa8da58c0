"""Optimizers: how many moments each kind of weight has, and in what width."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture import Part, Weight
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.ground.errors import UnknownName
from plimsoll.planners.stacks.records import UpdateRules

# bitsandbytes 0.50, optim/optimizer.py, `get_state_buffer`: states of fewer elements are not paged.
LEAST_PAGED_ELEMENTS = 100_000
# bitsandbytes 0.50, functional.py: one byte an element and one fp32 scale for each block of 256.
EIGHT_BIT_SCALE_BYTES = 4 / 256
EIGHT_BIT_BYTES = 1 + EIGHT_BIT_SCALE_BYTES
ADAM_SOURCE = "Kingma & Ba 2015, arXiv:1412.6980"
# torch.optim keeps one fp32 step counter for each tensor.
STEP_COUNTER_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerKind:
    """An optimizer's states: moments of each element, or a row and a column for each matrix.

    `hidden_matrix_moments` differs from `moments` where the layers' matrices are
    treated apart. `moment_bytes` None leaves the width to the stack. `is_one_kernel` marks an update in place, which
    makes nothing beside the states, whatever the stack's own optimizer makes; `matrix_temporary_bytes` are made of each
    element of one matrix at a time instead, `gram_temporary_bytes` of each of its product with itself. One that
    `orthogonalizes` multiplies hidden matrices with themselves; one that `takes_stacks` treats experts that are one
    tensor as a matrix each.
    """

    name: str
    moments: int
    hidden_matrix_moments: int
    factored: bool = False
    moment_bytes: float | None = None
    paged_to_host: bool = False
    is_one_kernel: bool = False
    matrix_temporary_bytes: int = 0
    gram_temporary_bytes: int = 0
    orthogonalizes: bool = False
    takes_stacks: bool = True
    source: str = ""

    def moments_of(self, weight: Weight) -> int:
        """Return how many moments each element of `weight` has, rows and columns apart."""
        if self.is_factored(weight):
            return 0
        is_hidden_matrix = len(weight.shape) >= 2 and weight.part not in (Part.EMBEDDING, Part.HEAD)
        is_hidden_matrix = is_hidden_matrix and (self.takes_stacks or weight.experts == 1)
        return self.hidden_matrix_moments if is_hidden_matrix else self.moments

    def is_factored(self, weight: Weight) -> bool:
        """Return whether `weight` is remembered by its rows and columns only."""
        return self.factored and len(weight.shape) >= 2


def _bitsandbytes_adam(name: str, *, moment_bytes: float, paged_to_host: bool = False) -> OptimizerKind:
    return OptimizerKind(
        name=name,
        moments=2,
        hidden_matrix_moments=2,
        moment_bytes=moment_bytes,
        paged_to_host=paged_to_host,
        is_one_kernel=True,
        source=ADAM_SOURCE,
    )


OPTIMIZERS: Mapping[str, OptimizerKind] = {
    kind.name: kind
    for kind in (
        OptimizerKind(name="adamw", moments=2, hidden_matrix_moments=2, source=ADAM_SOURCE),
        # fp32 whatever the parameters' format (bitsandbytes 0.50, optim/optimizer.py, `init_state`).
        _bitsandbytes_adam("paged-adamw", moment_bytes=FP32_BYTES, paged_to_host=True),
        _bitsandbytes_adam("adamw-8bit", moment_bytes=EIGHT_BIT_BYTES),
        _bitsandbytes_adam("paged-adamw-8bit", moment_bytes=EIGHT_BIT_BYTES, paged_to_host=True),
        OptimizerKind(name="sgd", moments=0, hidden_matrix_moments=0, source="torch.optim.SGD"),
        OptimizerKind(name="sgd-momentum", moments=1, hidden_matrix_moments=1, source="torch.optim.SGD"),
        OptimizerKind(
            name="lion",
            moments=1,
            hidden_matrix_moments=1,
            moment_bytes=FP32_BYTES,  # of bitsandbytes, as its Adam's above
            is_one_kernel=True,
            source="Chen et al. 2023, arXiv:2302.06675",
        ),
        OptimizerKind(
            name="adafactor",
            moments=1,
            hidden_matrix_moments=1,
            factored=True,
            matrix_temporary_bytes=8,  # transformers, optimization.py: the update in fp32 and a second product for it
            source="Shazeer & Stern 2018, arXiv:1804.04235",
        ),
        OptimizerKind(
            name="muon",
            moments=2,
            hidden_matrix_moments=1,
            # torch, optim/_muon.py: the update in fp32, the orthogonal one and its product in 16 bits; A and B in them.
            matrix_temporary_bytes=8,
            gram_temporary_bytes=4,
            orthogonalizes=True,
            source="Jordan et al. 2024, Muon: AdamW for embeddings, head and vectors",
        ),
    )
}


@functools.cache
def of_matrices_alone(kind: OptimizerKind) -> OptimizerKind:
    """Return the optimizer as one that leaves experts which are one tensor to the moments of all else."""
    return dataclasses.replace(kind, takes_stacks=False)


@functools.cache
def updated_by(kind: OptimizerKind, update: UpdateRules) -> OptimizerKind:
    """Return the optimizer as a stack runs it, which makes more or less of a matrix while it is updated."""
    if not kind.orthogonalizes or not update.matrix_bytes:
        return kind
    return dataclasses.replace(kind, matrix_temporary_bytes=update.matrix_bytes, gram_temporary_bytes=0)


def optimizer_kind(name: str) -> OptimizerKind:
    """Return an optimizer by name; raise `UnknownName` with the nearest ones."""
    if name not in OPTIMIZERS:
        raise UnknownName(name, OPTIMIZERS, pointer="/training/optimizer")
    return OPTIMIZERS[name]

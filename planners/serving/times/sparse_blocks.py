"""Seconds of one rank's blocks of sparse latent attention, their projections and indexer included.

Blocks were measured whole, so that a step takes one in place of its products and its attention; which layers have one
is `rank_operators.measured_family`.
"""

from __future__ import annotations

from plimsoll.planners.architecture import Block, Operation, OperationKind, Region
from plimsoll.planners.operators.sparse_latent import SparseBlock, sparse_block
from plimsoll.planners.serving.times.curve import SIZES, FloatArray
from plimsoll.planners.serving.times.rank_operators import Rank, format_of, measured_family

OUTPUT = "output_projection"


def block_of(block: Block, rank: Rank, cache_name: str) -> SparseBlock | None:
    """Return the measured block of a layer, None where none was measured."""
    family = measured_family(block)
    if family is None:
        return None
    output = next(each for each in block.operations if each.name == OUTPUT)
    indexes = any(is_indexer(each) for each in block.operations)
    gpu, engine = rank.gpu.value, rank.operators_engine
    return sparse_block(gpu, engine, family, format_of(output, rank), cache_name, indexes=indexes)


def is_indexer(operation: Operation) -> bool:
    """Return whether an operation scores earlier tokens for another one to attend to, whole on every rank."""
    return operation.kind is OperationKind.ATTENTION and operation.region is Region.SEQUENCE


def sparse_token_seconds(found: SparseBlock, heads: float, context_tokens: float) -> FloatArray:
    """Return a layer's seconds for one token in each of `SIZES` sequences, with one rank's heads."""
    return found.seconds(SIZES, max(1.0, context_tokens), max(1.0, heads))

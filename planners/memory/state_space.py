"""What lives as Mamba-2's fused kernel is differentiated: the scan is made again, a matrix for each head and chunk.

A step's states stand in fp32 beside their gradients, and then both once more in the format of the products; after
that heads add up their parts of what they share. Two moments can be the worst: the first with many tokens, the second
with so few that each multiprocessor adds up its own.

Source: state-spaces/mamba 2.3.2, ops/triton/ssd_combined.py (`MambaSplitConv1dScanCombinedFn.backward`,
`_mamba_chunk_scan_combined_bwd`), ssd_state_passing.py, ssd_chunk_state.py and ssd_chunk_scan.py there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from plimsoll.planners.architecture import Block, OperationKind, Scan, ScanKernel
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.layouts.candidates import FloatArray
from plimsoll.planners.memory.activations import SavedBytes, checkpoint_width, saved_bytes
from plimsoll.planners.memory.rank_share import RankShare
from plimsoll.planners.memory.recurrent import block_scan
from plimsoll.planners.stacks.records import Kernels

# Streaming multiprocessors of an H100 SXM (NVIDIA's H100 whitepaper, table 3), which heads are divided over.
MULTIPROCESSORS = 132
# The smallest tiles that the kernels may be tuned to, for which sums of parts have room.
LEAST_QUERY_TILE = 32
LEAST_STATE_TILE = 64
# The gated norm's input made again, the gradients of its output and its input.
FUSED_INNER_TENSORS = 3
# The gradients of the gated output and of the one before the gate.
INNER_TENSORS = 2
# What was projected has a gradient of its own width; convolved channels are made again, and have one too.
CONVOLVED_TENSORS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpaceScan:
    """A layer's scan: what is saved up to it, and what it makes for each token beside states, scores and sums.

    `stream_bytes` are of the stream's gradients, which tensor parallelism does not divide; `cast` and
    `cast_stream_bytes` where autocast casts fp32 weights.
    """

    scan: Scan
    saved: SavedBytes
    cast: SavedBytes
    stream_bytes: int
    cast_stream_bytes: int
    operand_bytes: int
    element_bytes: int


def state_space_scan(
    block: Block, kernels: Kernels, *, attention: str, element_bytes: int, learning: frozenset[str] | None
) -> StateSpaceScan | None:
    """Return a layer's scan; None where it has none of this kernel."""
    operation = block_scan(block)
    if operation is None or operation.scan is None or operation.scan.kernel is not ScanKernel.STATE_SPACE:
        return None
    index = block.operations.index(operation) + 1
    if block.operations[index].kind is OperationKind.NORM and kernels.fuses_scan_output:
        index += 1
    before = replace(block, operations=block.operations[:index])
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    convolved, projected = operation.inputs
    inner = FUSED_INNER_TENSORS if kernels.fuses_scan_output else INNER_TENSORS
    features = inner * widths[operation.output] + CONVOLVED_TENSORS * widths[convolved] + widths[projected]
    width = checkpoint_width(block)
    # The gradient of what the layer adds is the stream's, unless that is scaled or autocast casts it down.
    is_scaled = any(op.is_scaled for op in block.operations)
    plain, cast = (
        saved_bytes(
            before,
            kernels,
            attention=attention,
            element_bytes=element_bytes,
            learning=learning,
            autocast=autocast and learning is None,
        )
        for autocast in (False, True)
    )
    return StateSpaceScan(
        scan=operation.scan,
        saved=plain,
        cast=cast,
        stream_bytes=(1 + is_scaled) * element_bytes * width,
        cast_stream_bytes=(FP32_BYTES + element_bytes) * width,
        operand_bytes=element_bytes * (features + operation.scan.heads),
        element_bytes=element_bytes,
    )


def live_at_scan(layer: StateSpaceScan, share: RankShare, casts: np.ndarray) -> FloatArray:
    """Return a rank's live bytes of a layer as its scan is differentiated, at the worse of two moments."""
    saved = np.where(casts, share.of(layer.cast), share.of(layer.saved))
    stream = share.of_sequence(np.where(casts, layer.cast_stream_bytes, layer.stream_bytes))
    result: FloatArray = saved + stream + share.tokens * layer.operand_bytes / share.tensor + _scan_bytes(layer, share)
    return result


def _scan_bytes(layer: StateSpaceScan, share: RankShare) -> FloatArray:
    """Return what the chunked scan makes beside its operands."""
    scan, layouts = layer.scan, share.layouts
    sequences = layouts.micro_batch_size.astype(np.float64)
    heads, groups = scan.heads / share.tensor, np.maximum(scan.groups / share.tensor, 1.0)
    local_length = share.tokens / sequences
    chunks = sequences * np.ceil(local_length / scan.chunk_tokens)
    tokens = chunks * scan.chunk_tokens  # those that fill the last chunk too
    state = scan.key_dim * scan.value_dim
    states, final = chunks * heads * state, sequences * heads * state
    steps = FP32_BYTES * tokens * heads
    scores = FP32_BYTES * tokens * groups * scan.chunk_tokens
    shared = FP32_BYTES * share.tokens * groups * scan.key_dim
    parts = _sums_of_heads(chunks, heads, groups)
    through = 2.0 * steps + scores + FP32_BYTES * final
    narrow = 2.0 * layer.element_bytes * states
    at_states = 2.0 * FP32_BYTES * states + narrow + FP32_BYTES * states / LEAST_STATE_TILE
    # The steps' gradient, those of keys and queries with the decays' beside each, and all that heads share.
    summed = narrow + 3.0 * steps + 2.0 * shared
    at_scores = summed + (parts + 1.0) * scores
    at_decays = summed + scores + (2.0 + np.ceil(scan.chunk_tokens / LEAST_QUERY_TILE)) * steps
    result: FloatArray = through + np.maximum(at_states, np.maximum(at_scores, at_decays))
    return result


def _sums_of_heads(chunks: FloatArray, heads: FloatArray, groups: FloatArray) -> FloatArray:
    """Return in how many sums the gradients that a group's heads share are added up."""
    of_group = heads / groups
    in_one = np.clip(np.ceil(chunks * heads / MULTIPROCESSORS), 1.0, of_group)
    result: FloatArray = np.ceil(of_group / in_one)
    return result

"""What the training kernels of recurrent layers save for the backward pass.

Each kernel is an autograd function of its own, and what it saves is its
`save_for_backward` list; whatever it leaves out it computes again. Chunks are of
64 tokens in flash-linear-attention, of 2,048 in the selective scan.

Sources: state-spaces/mamba, ops/selective_scan_interface.py (MambaInnerFn,
SelectiveScanFn), csrc/selective_scan/selective_scan.cpp, ops/triton/ssd_combined.py
(MambaSplitConv1dScanCombinedFn); fla-org/flash-linear-attention,
ops/gated_delta_rule/chunk.py and ops/kda/chunk.py; Dao-AILab/causal-conv1d, which
saves its input. Megatron-Core repeats queries and keys for every value head before the
kernel (core/ssm/gated_delta_net.py); transformers 5.23 does not (modeling_qwen3_next).
"""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.planners.architecture import Block, Operation, OperationKind, Scan, ScanKernel
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.stacks.records import Kernels

DELTA_CHUNK_TOKENS = 64
SELECTIVE_CHUNK_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanBytes:
    """Bytes for each token that stand beside the layer's named tensors, by what divides them."""

    sequence_bytes: float
    tensor_bytes: float


def block_scan(block: Block) -> Operation | None:
    """Return the block's recurrence, if it has one."""
    return next((operation for operation in block.operations if operation.kind is OperationKind.SCAN), None)


def saved_scan_inputs(operation: Operation) -> tuple[str, ...]:
    """Return which of its named inputs a recurrence saves; convolved channels are computed again but where apart."""
    if operation.scan is None:
        return operation.inputs
    left_out = {
        ScanKernel.SELECTIVE: ("convolved", "step"),
        ScanKernel.SELECTIVE_APART: (),
    }.get(operation.scan.kernel, ("convolved",))
    return tuple(name for name in operation.inputs if name not in left_out)


def fused_operations(block: Block, kernels: Kernels) -> frozenset[str]:
    """Return the operations that the recurrence's kernel does itself, so that their inputs are not saved for them."""
    operation = block_scan(block)
    if operation is None or operation.scan is None:
        return frozenset()
    match operation.scan.kernel:
        case ScanKernel.SELECTIVE:
            return frozenset(("selection_projection", "step_projection", "output_projection"))
        case ScanKernel.STATE_SPACE if kernels.fuses_scan_output:
            return frozenset(("output_norm", "output_projection"))
        case ScanKernel.SELECTIVE_APART:
            return frozenset()
        case _:
            # A fused gated norm saves its input as it is.
            return frozenset(("output_norm",))


def scan_bytes(block: Block, kernels: Kernels, element_bytes: int) -> ScanBytes:
    """Return what the kernel saves that is no tensor of the layer's description."""
    operation = block_scan(block)
    if operation is None or operation.scan is None:
        return ScanBytes(sequence_bytes=0.0, tensor_bytes=0.0)
    scan, size = operation.scan, element_bytes
    values, keys = scan.heads * scan.value_dim, scan.heads * scan.key_dim
    match scan.kernel:
        case ScanKernel.SELECTIVE | ScanKernel.SELECTIVE_APART:
            # The scan's output before its gate, one fp32 pair for each element of the state at every chunk's end;
            # B and C once more, in the scan's order.
            states = 2 * FP32_BYTES * keys / SELECTIVE_CHUNK_TOKENS
            return ScanBytes(sequence_bytes=2.0 * scan.key_dim * size, tensor_bytes=values * size + states)
        case ScanKernel.STATE_SPACE:
            # A norm outside of the kernel saves the gated output, beside the one before the gate that the kernel saves.
            return ScanBytes(sequence_bytes=0.0, tensor_bytes=0.0 if kernels.fuses_scan_output else values * size)
        case ScanKernel.GATED_DELTA if kernels.transformers_modules:
            # The norm's root of each head, and in fp32 what the softplus of its decay is taken of, and that.
            beside = 3 * FP32_BYTES * scan.heads
            return ScanBytes(sequence_bytes=0.0, tensor_bytes=_delta_bytes(scan, size, key_heads=scan.groups) + beside)
        case ScanKernel.GATED_DELTA | ScanKernel.CHANNEL_DELTA:
            return ScanBytes(sequence_bytes=0.0, tensor_bytes=_delta_bytes(scan, size, key_heads=scan.heads))


def scan_workspace_bytes(block: Block, element_bytes: int) -> float:
    """Return the bytes a token of what a chunked recurrence computes again and differentiates in its backward pass.

    The states at every chunk's beginning and their gradients stand beside the
    gradients of what the kernel was given.
    """
    operation = block_scan(block)
    if operation is None or operation.scan is None:
        return 0.0
    scan = operation.scan
    state = scan.heads * scan.key_dim * scan.value_dim
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    given = element_bytes * sum(widths[name] for name in operation.inputs)
    match scan.kernel:
        case ScanKernel.SELECTIVE | ScanKernel.SELECTIVE_APART:
            return float(given)
        case ScanKernel.STATE_SPACE:
            return 0.0  # which is no sum for each token: `state_space.py`
        case ScanKernel.GATED_DELTA | ScanKernel.CHANNEL_DELTA:
            return given + 2.0 * element_bytes * state / DELTA_CHUNK_TOKENS


def save_gated_delta(block: Block, saved: dict[str, float], element_bytes: int) -> None:
    """Count what transformers' own code of a gated delta rule saves around its kernels, in place of what is projected.

    The convolution's input is a copy or a view of the first projection. The gated norm is written in separate
    operations: its input in fp32, that normed and that scaled, its gate in fp32 and the gate's SiLU. Source:
    transformers 5.23, modeling_qwen3_next.py, `Qwen3NextGatedDeltaNet` and `Qwen3NextRMSNormGated`.
    """
    operation = block_scan(block)
    if operation is None or operation.scan is None or operation.scan.kernel is not ScanKernel.GATED_DELTA:
        return
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    convolved, first, *others = operation.inputs
    saved[first] = element_bytes * widths[convolved] / widths[first]
    for name in others:
        saved.pop(name, None)
    saved[operation.output] = float(3 * FP32_BYTES + 2 * element_bytes)


def _delta_bytes(scan: Scan, size: int, *, key_heads: int) -> float:
    """Return a delta rule's normed queries and keys with their norms, values, decay, strength and chunk matrices.

    A decay for each channel is saved as its fp32 sum for every key feature, and the
    matrix of scores within a chunk beside the one that solves it. `key_heads` are those that the kernel is given.
    """
    operands = size * (2 * key_heads * scan.key_dim + scan.heads * scan.value_dim)
    norms = 2 * FP32_BYTES * key_heads
    by_channel = scan.kernel is ScanKernel.CHANNEL_DELTA
    decay = FP32_BYTES * scan.heads * (scan.key_dim if by_channel else 1)
    chunk_matrices = size * scan.heads * DELTA_CHUNK_TOKENS * (2 if by_channel else 1)
    return float(operands + norms + decay + size * scan.heads + chunk_matrices)

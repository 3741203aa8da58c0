"""What kernels that run several operations in one no longer read and write.

An operation's own traffic is its inputs and its output, once each. Run one by one, as
transformers' Llama code has them, the operations of a norm, a rotation, a gated
activation and the loss read and write more; so many bytes for each element of
their inputs in the forward pass, in 16-bit training, and twice as many in the backward:

- RMSNorm: cast up (6 bytes), square (8), mean (4), product with the inverse root (8), cast down (6), product with the
  scale (4): 36, of which a fused kernel (Liger, ops/rms_norm.py) keeps a read and a write, 4.
- rotation: two products with cosine and sine (8), half of it negated (2), joined (4) and added (6): 20 of which 4 stay.
- SiLU or GELU and product: 10 for each pair of inputs, of which 6 stay.
- loss: logits to fp32 (6), log-softmax of three passes (12); back a zeroed gradient (4), the softmax's (16), to 16 bits
  (6): 44 over both passes. Liger's kernel (ops/cross_entropy.py) reads twice and writes once, then scales in place: 10.

LayerNorm is one kernel of torch's everywhere. Measured: fms-acceleration's kernels save Mistral 7B 36 us a token on an
A100 (by this account 27), torch.compile saves Llama 3 8B 24 us a token on an H100 (29).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from plimsoll.planners.architecture import Block, Operation, OperationKind
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.memory.activations import has_layer_norms

# Bytes for each element of the operation's inputs, forward; a third of both passes of the loss.
SAVED_BYTES: Mapping[OperationKind, float] = {
    OperationKind.NORM: 32.0,
    OperationKind.ROTARY: 16.0,
    OperationKind.GATED_ACTIVATION: 2.0,
    OperationKind.LOSS: 34.0 / 3.0,
}
MOST_KEPT_SUMS = 4096
EVERYTHING = frozenset(SAVED_BYTES)
# fms-acceleration's fused_ops has a norm, a rotation and a cross-entropy, and no gated activation.
FUSED: Mapping[str, frozenset[OperationKind]] = {
    "eager": frozenset(),
    "foak": EVERYTHING - {OperationKind.GATED_ACTIVATION},
    "fused": EVERYTHING,
    # Transformer Engine's layers, and Megatron-Core's loss of several operations.
    "transformer-engine": EVERYTHING - {OperationKind.LOSS},
    "compiled": EVERYTHING,
}


def saved_bytes(
    operations: tuple[Operation, ...], block: Block, kernels: str | None, measured_kernels: str
) -> tuple[float, float]:
    """Return the bytes a token that `kernels` save over those that a stack was measured with, forward.

    The first are of what the sequence divides, the second of what tensor-parallel
    ranks do; negative where `kernels` fuse less. None stands for the measured ones.
    """
    if kernels is None or FUSED[kernels] == FUSED[measured_kernels]:
        return 0.0, 0.0
    more, less = FUSED[kernels] - FUSED[measured_kernels], FUSED[measured_kernels] - FUSED[kernels]
    (sequence, tensor), (lost, lost_tensor) = (
        _bytes_of(operations, ByIdentity(block), kinds) for kinds in (more, less)
    )
    return sequence - lost, tensor - lost_tensor


@functools.lru_cache(maxsize=MOST_KEPT_SUMS)
def _bytes_of(
    operations: tuple[Operation, ...], same: ByIdentity[Block], kinds: frozenset[OperationKind]
) -> tuple[float, float]:
    """Return what separate operations of these kinds move beyond a fused kernel, for each token."""
    widths = {tensor.name: tensor.width for tensor in same.value.tensors}
    fusible = kinds - {OperationKind.NORM} if has_layer_norms(same.value) else kinds
    found = {"sequence": 0.0, "tensor": 0.0}
    for operation in operations:
        if operation.kind in fusible:
            elements = sum(widths.get(name, 0) for name in operation.inputs)
            found[str(operation.region)] += SAVED_BYTES[operation.kind] * elements
    return found["sequence"], found["tensor"]

"""Recurrent layers in time: chunked recurrences on matrix units, or as fast as memory moves their operands.

Within a chunk a recurrence is a product of matrices, between chunks its state is
carried on. Mamba's selective scan has no such form and moves its operands only.
No timed run of such a layer is on record: its products are taken to reach what
attention's kernel does, which multiplies tiles of the same size.
"""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll.planners.architecture import Operation, Scan, ScanKernel
from plimsoll.planners.memory.recurrent import DELTA_CHUNK_TOKENS


def chunked_flops_per_token(scan: Scan) -> float:
    """Return the operations of one token's share of its chunk's products, forward.

    State spaces: scores of B and C for each group, their product with the
    values, and the state written and read (Dao & Gu 2024, arXiv:2405.21060,
    section 6). Delta rules: scores of keys with keys and with queries, the two
    products with the solved matrix, the scores' with the new values, and the
    state read twice and written once (Yang et al. 2024, arXiv:2406.06484,
    section 3).
    """
    state = scan.heads * scan.key_dim * scan.value_dim
    keys, values = scan.heads * scan.key_dim, scan.heads * scan.value_dim
    match scan.kernel:
        case ScanKernel.STATE_SPACE:
            within = scan.groups * scan.key_dim + values
            return 2.0 * (scan.chunk_tokens * within + 2 * state)
        case ScanKernel.GATED_DELTA | ScanKernel.CHANNEL_DELTA:
            return 2.0 * (DELTA_CHUNK_TOKENS * (3 * keys + 2 * values) + 3 * state)
        case ScanKernel.SELECTIVE | ScanKernel.SELECTIVE_APART:
            return 0.0


def chunked_flops(operations: Sequence[Operation]) -> float:
    """Return the chunked operations of all recurrences among a block's operations, for each token."""
    return sum(chunked_flops_per_token(operation.scan) for operation in operations if operation.scan is not None)

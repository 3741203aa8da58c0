"""Recurrent layers in time: four heads of 16 key and 32 value features."""

import pytest

from plimsoll.planners.architecture import Operation, OperationKind, Scan, ScanKernel
from plimsoll.planners.timing.recurrent import chunked_flops, chunked_flops_per_token

STATE = 4 * 16 * 32


def scan(kernel: ScanKernel) -> Scan:
    return Scan(kernel=kernel, heads=4, key_dim=16, value_dim=32, chunk_tokens=256)


@pytest.mark.parametrize(
    ("kernel", "products"),
    [
        # 256 tokens a chunk: one group's 16 features of B and C, 128 values; the state written and read.
        (ScanKernel.STATE_SPACE, 256 * (16 + 128) + 2 * STATE),
        # 64 tokens a chunk: three products over 64 key features, two over 128 values; the state three times.
        (ScanKernel.GATED_DELTA, 64 * (3 * 64 + 2 * 128) + 3 * STATE),
        (ScanKernel.CHANNEL_DELTA, 64 * (3 * 64 + 2 * 128) + 3 * STATE),
        (ScanKernel.SELECTIVE, 0),
        (ScanKernel.SELECTIVE_APART, 0),
    ],
)
def test_chunks_are_products_of_matrices(kernel, products):
    assert chunked_flops_per_token(scan(kernel)) == 2 * products


def test_only_recurrences_are_counted():
    norm = Operation(name="norm", kind=OperationKind.NORM, inputs=("a",), output="b")
    recurrence = Operation(
        name="scan", kind=OperationKind.SCAN, inputs=("b",), output="c", scan=scan(ScanKernel.STATE_SPACE)
    )
    assert chunked_flops([norm, recurrence]) == chunked_flops_per_token(scan(ScanKernel.STATE_SPACE))

"""FSDP2's states on the host: what lies there, and what the device still has."""

import pytest

from plimsoll.service.worker.recording.ledger import Kind
from tests.service.worker.cases import traced

SHARD_ELEMENTS = 26_448  # worked out in test_step.py
TENSORS = 9 * 2 + 3


@pytest.fixture(scope="module")
def offloaded():
    return traced(offload="optimizer+parameters")


def at_update(ledger, *, on_host):
    ranges = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == "optimizer"]
    return ledger.peak(*ranges[-1], on_host=on_host).live


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "held_bytes"),
    [
        (Kind.PARAMETER, 4 * SHARD_ELEMENTS),
        (Kind.GRADIENT, 4 * SHARD_ELEMENTS),
        (Kind.OPTIMIZER_STATE, 8 * SHARD_ELEMENTS + 4 * TENSORS),
    ],
)
def test_every_state_lies_on_the_host_as_long_as_the_shard(offloaded, kind, held_bytes):
    live = at_update(offloaded, on_host=True)
    assert sum(piece.requested_bytes for piece in live if piece.kind is kind) == held_bytes


def test_the_device_has_no_state_while_the_optimizer_works(offloaded):
    kinds = {piece.kind for piece in at_update(offloaded, on_host=False)}
    assert not kinds & {Kind.PARAMETER, Kind.GRADIENT, Kind.OPTIMIZER_STATE}


def test_shards_come_to_the_device_for_each_gather(offloaded):
    # q's shard of 16 x 64 elements, copied up in fp32 for each pass over two layers, forward and backward.
    copies = [
        event.piece.requested_bytes
        for event in offloaded.events
        if event.piece.kind is Kind.GATHERED_PARAMETER and event.piece.origin == "aten::clone" and not event.is_release
    ]
    assert copies.count(4 * 16 * 64) > 4

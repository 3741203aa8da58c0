"""Activations that wait on the host, as torch's hook and TRL's send them there."""

import pytest

from plimsoll.service.worker.recording.ledger import Kind
from tests.service.worker.cases import traced_once

TOKENS = 64
HIDDEN_BYTES = TOKENS * 64 * 2  # a micro-batch's hidden states in bf16


def left_by_forward(ledger, *, on_host):
    """Return the forward activations that are alive as the last forward pass ends."""
    ranges = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == "forward"]
    live = ledger._live_after(ranges[-1][1] - 1, on_host=on_host)
    return [piece for piece in live if piece.kind == Kind.FORWARD_ACTIVATION]


@pytest.fixture(scope="module")
def trl():
    return traced_once(activation_offload=True)


@pytest.mark.slow
class TestTrl:
    def test_what_is_kept_again_while_it_waits_stays_on_the_device(self, trl):
        # A layer's: two norms' inputs in fp32 (square and product), their outputs (q, k, v; gate, up) and attention's
        # output (attention and the next matrix): 2 x 2 + 2 + 1 hidden states in bf16. Two layers; the last norm's
        # input in fp32 besides, and its output, which the head keeps: 2 + 1.
        kept = sum(
            piece.requested_bytes
            for piece in left_by_forward(trl, on_host=False)
            if piece.requested_bytes >= HIDDEN_BYTES
        )
        assert kept == (2 * (4 + 2 + 1) + 3) * HIDDEN_BYTES

    def test_gathered_weights_are_sent_as_activations_are(self, trl):
        # Gate, up and down of 176 x 64 in bf16, in two layers; a product of the three is as long as no activation:
        # 64 tokens x 176 of gate, its SiLU, up and their product are as many bytes, four a layer.
        sent = [piece.requested_bytes for piece in left_by_forward(trl, on_host=True)]
        assert sent.count(2 * 64 * 176) == 2 * (3 + 4)

    def test_all_has_come_back_when_the_step_is_over(self, trl):
        assert not [
            piece for piece in trl._live_after(len(trl.events) - 1, on_host=True) if piece.kind != Kind.OPTIMIZER_STATE
        ]


def test_recomputed_layers_send_their_inputs():
    # Two layers' inputs, and what the last norm keeps: its input in fp32, and normalised in bf16.
    sent = [
        piece.requested_bytes
        for piece in left_by_forward(traced_once(activation_offload=True, recompute="full"), on_host=True)
    ]
    assert sorted(size for size in sent if size >= HIDDEN_BYTES)[:3] == [HIDDEN_BYTES] * 3


def test_torch_s_hook_leaves_nothing_of_the_layers_on_the_device():
    ledger = traced_once(framework="ddp", zero_stage=0, activation_offload=True)
    kept = left_by_forward(ledger, on_host=False)
    # The rotary angles, 2 x 2 x 16 bytes a position of 32, are nobody's to keep.
    assert sum(piece.requested_bytes for piece in kept) <= 32 * 64 + 4


def test_torch_s_hook_sends_a_tensor_once_for_each_operation_that_keeps_it():
    # Each layer has gate, SiLU, up and product of 64 x 176 in bf16, and 3 cast weights as long.
    ledger = traced_once(framework="ddp", zero_stage=0, activation_offload=True)
    sent = [piece.requested_bytes for piece in left_by_forward(ledger, on_host=True)]
    assert sent.count(2 * 64 * 176) == 2 * 7
    # fp32 hidden states: square, product and scale of two norms in each of two layers, and of the last norm.
    assert sent.count(4 * TOKENS * 64) == 3 * (2 * 2 + 1)

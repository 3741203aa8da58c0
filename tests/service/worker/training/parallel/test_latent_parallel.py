"""Latent attention and mixtures over tensor-parallel ranks, on a small DeepSeek.

Hidden 64, 4 heads with queries and keys of 16 + 8 and values of 16, latents of 32 and 16, 101 words.
"""

import pytest

from plimsoll.service.worker.recording.ledger import Kind
from tests.service.worker.cases import LATENT, requested_bytes, traced

SPLIT = {"framework": "fsdp2", "tensor_parallel": 2, "sequence_parallel": True}
# Whole on both ranks: the down projections of 32 and 16 + 8 features, the latents' norms and the layer's two.
WHOLE = (32 + 16 + 8) * 64 + 32 + 16 + 2 * 64
# By head: queries up, keys and values up, output.
BY_HEAD = 4 * 24 * 32 + 4 * 32 * 16 + 4 * 16 * 64
DENSE = 3 * 176 * 64
# Four experts and a shared one of 48 features.
EXPERTS = 5 * 3 * 48 * 64
ROUTER = 4 * 64
# A rank's 51 of 101 rows over four ranks are 13, of embedding and head; the last norm's 64 features over four.
VOCABULARY = 2 * 13 * 64 + 64 // 4


@pytest.mark.slow
@pytest.mark.parametrize(("dense", "feed_forward"), [(2, DENSE // 2), (0, EXPERTS // 2 + ROUTER)])
def test_down_projections_and_routers_are_whole_and_the_rest_is_halved(dense, feed_forward):
    ledger = traced(config=LATENT | {"first_k_dense_replace": dense}, **SPLIT)
    layer = (WHOLE + BY_HEAD // 2 + feed_forward) // 4
    assert requested_bytes(ledger, Kind.PARAMETER) == 4 * (2 * layer + VOCABULARY)


@pytest.mark.slow
def test_the_kernel_works_on_a_rank_s_own_heads():
    ledger = traced(config=LATENT | {"first_k_dense_replace": 2}, **SPLIT)
    kernels = {piece.requested_bytes for event in ledger.events if "efficient" in (piece := event.piece).origin}
    # 64 tokens of two heads' values in 16 bits.
    assert 64 * 2 * 16 * 2 in kernels
    assert 64 * 4 * 16 * 2 not in kernels


@pytest.mark.slow
def test_a_last_layer_s_experts_are_gathered_by_its_second_run():
    # One dense layer and one with experts: none gathers the last one's ahead in the backward pass.
    model = LATENT | {"first_k_dense_replace": 1}
    ledger = traced(config=model, framework="fsdp2", expert_parallel=2, recompute="selective")
    assert requested_bytes(ledger, Kind.PARAMETER) > 0

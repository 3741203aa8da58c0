"""Mixtures of experts: a rank's weights, and the buffers that its kernels share."""

import pytest

from plimsoll.service.worker.proofs.serving import measured_terms
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.serving.passes import CUBLAS_WORKSPACE_BYTES, PROFILE
from plimsoll.service.worker.serving.running import trace_passes
from tests.service.worker.cases import config
from tests.service.worker.serving.cases import deployment
from tests.service.worker.serving.test_running import ran, requested

MIXTRAL = config(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2)
GPT_OSS = config(
    model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, layer_types=["full_attention"] * 2
)  # fmt: skip
EXPERTS = 4 * 3 * 176 * 64  # elements of a layer's experts


def traced(**parts):
    return trace_passes(deployment(**parts), lambda *_progress: None)


def kept_in_profile(ledger, requested_bytes):
    (profile,) = ((first, end) for mark, first, end in ledger.phase_ranges() if mark.phase == PROFILE)
    return [piece for piece in ledger.peak(*profile).live if piece.requested_bytes == requested_bytes]


def held_by_experts(ledger):
    live = ledger.peak().live
    return sum(piece.requested_bytes for piece in live if piece.kind is Kind.PARAMETER and ".experts." in piece.origin)


def test_a_rank_has_a_part_of_each_expert_or_some_of_them_whole():
    whole = requested(traced(model=MIXTRAL), Kind.PARAMETER)
    two = {"tensor_parallel": 2}
    divided = requested(traced(model=MIXTRAL, layout=two), Kind.PARAMETER)
    shared = requested(traced(model=MIXTRAL, layout={**two, "expert_parallel": 2}), Kind.PARAMETER)
    norms, routers = 5 * 64, 2 * 4 * 64
    assert divided == shared == (whole - 2 * (norms + routers)) // 2 + 2 * (norms + routers)


def test_all_layers_share_two_buffers_of_a_row_for_every_expert_of_a_token():
    # 64 tokens of 2 experts: a product of 176 (the output has 64) and gate and up of 352 elements a row, 2 bytes.
    assert len(kept_in_profile(traced(model=MIXTRAL), 64 * 2 * (176 + 352) * 2)) == 1
    # With an expert's length halved both are as wide as half of it: 88 and 176; the output's 64 are still fewer.
    assert len(kept_in_profile(traced(model=MIXTRAL, layout={"tensor_parallel": 2}), 64 * 2 * (88 + 176) * 2)) == 1


def test_experts_in_8_bits_make_copies_of_what_they_multiply():
    wide, narrow = (measured_terms(traced(model=MIXTRAL, settings={"weights": name})) for name in ("bf16", "fp8"))
    assert narrow["activations"] >= wide["activations"]


def test_a_real_rank_runs_its_experts():
    wanted = deployment(model=MIXTRAL, layout={"tensor_parallel": 2})
    real, _ = ran(wanted)
    expected = measured_terms(trace_passes(wanted, lambda *_progress: None))
    assert measured_terms(real)["weights"] == expected["weights"]
    assert measured_terms(real)["activations"] >= expected["activations"] - CUBLAS_WORKSPACE_BYTES


@pytest.mark.parametrize(
    ("weights", "expert_bytes"),
    [
        # 8 numbers a word: 4 bits an element; a 16-bit scale and a 4-bit zero for every output of a group of up to 128
        # inputs: one group of 64 and, of 176, two.
        ("int4", EXPERTS // 2 + 4 * (2 * 176 + 64 * 2) * 2 + 4 * (2 * 176 + 64 * 2) // 2),
        # 2 numbers a byte, an fp32 scale for 64 elements, and 16 entries of a codebook of each of the two matrices.
        ("nf4", EXPERTS // 2 + EXPERTS // 64 * 4 + 2 * 16 * 4),
    ],
)
def test_experts_in_4_bits_are_held_as_their_kernels_want_them(weights, expert_bytes):
    ledger = traced(model=MIXTRAL, settings={"weights": weights})
    assert held_by_experts(ledger) == 2 * expert_bytes


def test_gpt_oss_pads_its_experts_and_keeps_no_buffers():
    ledger = traced(model=GPT_OSS, settings={"weights": "mxfp4"})
    # 176 are padded to 256, 64 to 256: 3 x 256 x 256 of half a byte and a byte's scale for 32; biases of 2 x 176 + 64.
    each = 3 * 256 * 256 // 2 + 3 * 256 * 256 // 32 + 2 * (2 * 176 + 64)
    assert held_by_experts(ledger) == 2 * 4 * each
    assert not kept_in_profile(ledger, 64 * 2 * (176 + 352) * 2)

"""One rank of a deployment: on fake tensors, and the same on the CPU."""

import pytest

from plimsoll.service.worker.devices.device import find_device
from plimsoll.service.worker.proofs.serving import measured_terms
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.serving.passes import CUBLAS_WORKSPACE_BYTES
from plimsoll.service.worker.serving.running import run_passes, trace_passes
from tests.service.worker.cases import config
from tests.service.worker.serving.cases import deployment

# A layer: (64 + 32 + 32 + 64) x 64 of attention, 3 x 176 x 64 of the feed-forward, two norms; the vocabulary of 101
# rows is padded to 128, twice; the last norm.
ELEMENTS = 2 * (192 * 64 + 3 * 176 * 64 + 128) + 2 * 128 * 64 + 64
# A position's cosines and sines, 16 of 2 bytes, of 128 positions; the 8 frequencies that transformers keeps, twice.
TABLE_BYTES = 128 * 16 * 2
FREQUENCY_BYTES = 2 * 8 * 4


def requested(ledger, *kinds):
    return sum(piece.requested_bytes for piece in ledger.peak().live if piece.kind in kinds)


def ran(wanted):
    device = find_device("cpu", planned_gpu="h100-sxm-80gb", any_gpu_kind=False)
    record, seconds = run_passes(wanted, device, lambda *_progress: None)
    assert record.out_of_memory is None
    return record.ledger, seconds


def test_weights_and_cache_are_the_plan_s_own_shapes():
    ledger = trace_passes(deployment(), lambda *_progress: None)
    assert requested(ledger, Kind.PARAMETER) == 2 * ELEMENTS
    assert requested(ledger, Kind.BUFFER) == TABLE_BYTES + FREQUENCY_BYTES
    # Keys and values of 2 layers, 40 blocks of 16 tokens, 2 heads of 16 features, 2 bytes.
    assert requested(ledger, Kind.KV_CACHE) == 2 * 2 * 40 * 16 * 2 * 16 * 2


def test_a_tensor_parallel_rank_has_half_of_the_matrices_and_of_the_cache():
    ledger = trace_passes(deployment(layout={"tensor_parallel": 2}), lambda *_progress: None)
    norms = 5 * 64
    assert requested(ledger, Kind.PARAMETER) == 2 * ((ELEMENTS - norms) // 2 + norms)
    assert requested(ledger, Kind.KV_CACHE) == 2 * 40 * 16 * 2 * 16 * 2


@pytest.mark.parametrize(("weights", "scales"), [("fp8", 7), ("int8", 64 + 32 + 32 + 64 + 176 + 176 + 64)])
def test_narrow_matrices_take_a_byte_an_element_and_their_scales_four(weights, scales):
    ledger = trace_passes(deployment(settings={"weights": weights}), lambda *_progress: None)
    matrices = 2 * (192 * 64 + 3 * 176 * 64)
    assert requested(ledger, Kind.PARAMETER) == matrices + 2 * (ELEMENTS - matrices) + 2 * 4 * scales


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"settings": {"weights": "fp32"}},
        {"layout": {"tensor_parallel": 2}},
        {"settings": {"engine_version": "0.14"}},
    ],
)
def test_a_real_rank_takes_what_the_traced_one_takes(parts):
    wanted = deployment(**parts)
    real, seconds = ran(wanted)
    traced = measured_terms(trace_passes(wanted, lambda *_progress: None))
    # What cuBLAS keeps is made by rule in the trace, and by no CPU.
    traced["activations"] -= CUBLAS_WORKSPACE_BYTES
    assert measured_terms(real) == traced
    assert set(seconds) == {"prefill_group_seconds", "decode_step_seconds"}


@pytest.mark.parametrize("weights", ["fp8", "int8"])
def test_a_real_rank_multiplies_by_narrow_matrices(weights):
    real, _ = ran(deployment(settings={"weights": weights, "kv_cache": "fp8"}))
    traced = trace_passes(deployment(settings={"weights": weights, "kv_cache": "fp8"}), lambda *_progress: None)
    assert requested(real, Kind.PARAMETER, Kind.KV_CACHE) == requested(traced, Kind.PARAMETER, Kind.KV_CACHE)


def test_narrow_matrices_are_divided_over_tensor_parallel_ranks():
    ledger = trace_passes(
        deployment(layout={"tensor_parallel": 2}, settings={"weights": "fp8"}), lambda *_progress: None
    )
    matrices, norms = 2 * (192 * 64 + 3 * 176 * 64), 5 * 64
    wide = (ELEMENTS - norms - matrices) // 2 + norms
    assert requested(ledger, Kind.PARAMETER) == matrices // 2 + 2 * wide + 2 * 4 * 7


def test_a_rank_of_more_than_there_are_key_value_heads_has_one():
    wanted = deployment(layout={"tensor_parallel": 4})
    real, _ = ran(wanted)
    # Two heads over four ranks: keys and values of 2 layers, 40 blocks of 16 tokens, one head of 16 features.
    assert requested(real, Kind.KV_CACHE) == 2 * 2 * 40 * 16 * 16 * 2
    assert measured_terms(real)["weights"] == measured_terms(trace_passes(wanted, lambda *_progress: None))["weights"]


def test_a_tied_head_is_loaded_once():
    ledger = trace_passes(deployment(model=config(tie_word_embeddings=True)), lambda *_progress: None)
    assert requested(ledger, Kind.PARAMETER) == 2 * (ELEMENTS - 128 * 64)


def test_a_prompt_longer_than_a_batch_is_read_in_chunks():
    real, _ = ran(deployment(settings={"max_num_batched_tokens": 20}, kv={"requests_held": 2}))
    assert [mark.phase for mark in real.marks] == ["weights", "profile", "cache", "prefill", "decode"]


def test_a_cache_that_holds_no_request_ends_with_its_allocation():
    real, seconds = ran(deployment(kv={"requests_held": 0, "blocks": 2}, performance=None))
    assert [mark.phase for mark in real.marks] == ["weights", "profile", "cache"]
    assert seconds == {}

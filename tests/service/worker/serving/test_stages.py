"""A pipeline's stage: its layers, and what it has of embedding, head and sampler."""

import pytest

from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.serving.passes import PROFILE
from plimsoll.service.worker.serving.running import trace_passes
from tests.service.worker.serving.cases import deployment
from tests.service.worker.serving.test_running import requested

LAYER = 192 * 64 + 3 * 176 * 64 + 128
TABLE = 128 * 64  # the vocabulary of 101 rows padded
ITEMS = {"weights": 1, "kv_cache": 1, "activations": 1}


def stage(number, **parts):
    """Return the deployment of two stages of a layer each, of which the one with this number binds."""
    other = {**ITEMS, "weights": 2}
    stages = [
        {"stage": index, "layers": (index, index), "items": ITEMS if index == number else other} for index in range(2)
    ]
    memory = {"items": ITEMS, "stages": stages}
    return deployment(layout={"pipeline_parallel": 2}, memory=memory, **parts)


@pytest.mark.parametrize(("number", "ends"), [(0, (True, False)), (1, (False, True))])
def test_the_stage_that_binds_is_read_from_the_plan(number, ends):
    read = stage(number)
    assert read.stage_layers == range(number, number + 1)
    assert (read.has_embedding, read.has_head) == ends


def test_one_stage_has_both_ends():
    assert (deployment().stage_layers, deployment().has_embedding, deployment().has_head) == (None, True, True)


@pytest.mark.parametrize(("number", "elements"), [(0, LAYER + TABLE), (1, LAYER + TABLE + 64)])
def test_a_stage_holds_its_layer_and_one_end(number, elements):
    ledger = trace_passes(stage(number), lambda *_progress: None)
    assert requested(ledger, Kind.PARAMETER) == 2 * elements
    # One layer's keys and values: 40 blocks of 16 tokens, 2 heads of 16 features, 2 bytes.
    assert requested(ledger, Kind.KV_CACHE) == 2 * 40 * 16 * 2 * 16 * 2


def test_a_later_stage_keeps_buffers_for_what_it_receives():
    ledger = trace_passes(stage(1), lambda *_progress: None)
    (profile,) = ((first, end) for mark, first, end in ledger.phase_ranges() if mark.phase == PROFILE)
    received = [piece for piece in ledger.peak(*profile).live if piece.origin == "aten::zeros"]
    # Hidden states and residual of 64 tokens of 64 features, 2 bytes.
    assert [piece.requested_bytes for piece in received if piece.kind is not Kind.BUFFER] == [64 * 64 * 2] * 2

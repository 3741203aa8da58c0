"""Linear layers in 4 bits: what is held, and what their kernels make."""

import pytest

from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.serving.running import trace_passes
from tests.service.worker.serving.cases import deployment
from tests.service.worker.serving.test_running import ELEMENTS, requested

# A layer's matrices by outputs and inputs: queries, keys, values, output, gate, up and down.
MATRICES = ((64, 64), (32, 64), (32, 64), (64, 64), (176, 64), (176, 64), (64, 176))
PACKED_ELEMENTS = 2 * sum(outputs * inputs for outputs, inputs in MATRICES)


def int4_bytes(outputs, inputs):
    """Return 4 bits an element and, for each group of 128 inputs, a 16-bit scale and a 4-bit zero an output."""
    groups = 1 if inputs <= 128 else 2
    return outputs * inputs // 2 + groups * outputs * 2 + groups * outputs // 2


def nf4_bytes(outputs, inputs):
    """Return 4 bits an element, an fp32 scale for each 64, and 16 entries of a codebook in fp32."""
    return outputs * inputs // 2 + outputs * inputs // 64 * 4 + 16 * 4


@pytest.mark.parametrize(("weights", "held_bytes"), [("int4", int4_bytes), ("nf4", nf4_bytes)])
def test_packed_matrices_are_held_with_their_scales(weights, held_bytes):
    ledger = trace_passes(deployment(settings={"weights": weights}), lambda *_progress: None)
    packed = 2 * sum(held_bytes(*matrix) for matrix in MATRICES)
    assert requested(ledger, Kind.PARAMETER) == packed + 2 * (ELEMENTS - PACKED_ELEMENTS)


def test_marlin_keeps_a_lock_for_each_multiprocessor_of_every_layer():
    plain, marlin = (
        requested(trace_passes(deployment(settings={"weights": name}), lambda *_progress: None), Kind.BUFFER)
        for name in ("bf16", "int4")
    )
    assert marlin - plain == 2 * 7 * 132 * 4


def test_nf4_is_unpacked_to_be_multiplied_by():
    ledger = trace_passes(deployment(settings={"weights": "nf4"}), lambda *_progress: None)
    made = [event.piece for event in ledger.events if not event.is_release]
    # A matrix of 176 x 64 in 16 bits, for gate and up, and down as long, in each layer of three passes.
    assert len([piece for piece in made if piece.requested_bytes == 176 * 64 * 2 and "new_empty" in piece.origin]) >= 18

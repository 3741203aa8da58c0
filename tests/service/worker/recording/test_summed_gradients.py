"""Gradients of a weight that a pass uses several times: autograd adds them up in place, but not beneath a tracker."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from plimsoll.service.worker.recording.ledger import Ledger
from plimsoll.service.worker.recording.patches import StreamClock
from plimsoll.service.worker.recording.tracker import BACKWARD, FORWARD, StorageTracker

ROWS, COLUMNS = 512, 256
WEIGHT_BYTES = 4 * ROWS * COLUMNS


@pytest.mark.parametrize(("told", "weights"), [(frozenset(), 3), (frozenset({(ROWS, COLUMNS)}), 2)])
def test_a_third_gradient_is_no_new_memory_where_the_weight_s_shape_is_told(told, weights):
    ledger = Ledger()
    with FakeTensorMode():
        head, chunks = nn.Linear(COLUMNS, ROWS, bias=False), torch.zeros(3, 2, COLUMNS)
        tracker = StorageTracker(ledger, StreamClock(), logit_shapes=frozenset(), summed_shapes=told)
        with tracker.watching():
            tracker.begin_phase(0, FORWARD)
            loss = sum(head(chunk).sum() for chunk in chunks)
            tracker.begin_phase(0, BACKWARD)
            loss.backward()
            so_far = ledger.so_far()
    large = [event for event in so_far.events if event.piece.requested_bytes == WEIGHT_BYTES]
    live = most = 0
    for event in large:
        live += -1 if event.is_release else 1
        most = max(most, live)
    assert most == 1 + weights  # the weight itself is seen as it is multiplied by


def test_a_tensor_that_is_added_to_a_number_in_a_second_run_is_new_memory():
    # torch.add of a number first: a mixture's router computed again by sparse mixing (modeling_phimoe.py).
    ledger = Ledger()
    with FakeTensorMode():
        mask = torch.zeros(ROWS, COLUMNS)
        tracker = StorageTracker(ledger, StreamClock(), logit_shapes=frozenset(), summed_shapes=frozenset())
        with tracker.watching():
            tracker.begin_phase(0, BACKWARD)
            torch.add(0.3333, mask, alpha=0.6667)
    assert [event.piece.requested_bytes for event in ledger.events if not event.is_release] == [WEIGHT_BYTES]

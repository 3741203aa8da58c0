"""Ledgers of a few events: what a layer adds, and a deeper model's."""

from plimsoll.service.worker.recording.layer_stretches import numbered_anew
from plimsoll.service.worker.recording.ledger import Kind, Ledger
from plimsoll.service.worker.recording.repeated_layers import Stretch, added_stretches, event_sign, grown_ledger


def has_same_events(one, other):
    signs = [[event_sign(event) for event in ledger.events] for ledger in (one, other)]
    return one.marks == other.marks and signs[0] == signs[1]


def ledger_of(layers, *, layer_bytes=512, head_bytes=1024):
    """Return a forward pass that keeps a piece a layer, the head's, and a backward pass that lets go of them."""
    ledger = Ledger()
    ledger.mark(0, "forward")
    kept = []
    for layer in range(layers):
        ledger.mark_layer(layer)
        kept.append(ledger.allocate(layer_bytes, kind=Kind.FORWARD_ACTIVATION, origin=f"layers.{layer}.out"))
    ledger.mark_layer(None)
    kept.append(ledger.allocate(head_bytes, kind=Kind.LOGITS, origin="head"))
    ledger.mark(0, "backward")
    ledger.release(kept.pop())
    for layer in reversed(range(layers)):
        ledger.mark_layer(layer)
        ledger.release(kept.pop())
    return ledger


def test_a_layer_more_adds_a_stretch_to_each_pass():
    # Forward: events 0 to 2 are layers, 3 the head. Backward from 4: the head, then layers 2, 1, 0.
    assert added_stretches(ledger_of(2), ledger_of(3), ledger_of(4)) == [
        Stretch(start=2, end=3),
        Stretch(start=7, end=8),
    ]


def test_repeated_stretches_make_the_deep_ledger():
    few, more, most = (ledger_of(layers) for layers in (2, 3, 4))
    grown = grown_ledger(more, added_stretches(few, more, most), repeats=4)
    # 7 layers of 512 bytes and the head's 1,024.
    assert grown.peak().allocated_bytes == 7 * 512 + 1024
    assert has_same_events(grown, ledger_of(7))
    assert [piece.origin for piece in grown.peak().live][:7] == [f"layers.{layer}.out" for layer in range(7)]
    assert [event.piece.number for event in grown.events] == [event.piece.number for event in ledger_of(7).events]


def test_the_layers_of_the_deep_ledger_are_marked_where_they_begin():
    few, more, most = (ledger_of(layers) for layers in (2, 3, 4))
    grown = grown_ledger(more, added_stretches(few, more, most), repeats=4)
    assert numbered_anew(grown, 0, 6).layer_marks == ledger_of(7).layer_marks


def test_grown_by_nothing_a_ledger_is_itself():
    few, more, most = (ledger_of(layers) for layers in (2, 3, 4))
    assert has_same_events(grown_ledger(more, added_stretches(few, more, most), repeats=0), more)


def test_pieces_whose_size_follows_the_depth_are_no_repeated_layers():
    assert added_stretches(ledger_of(2), ledger_of(3, head_bytes=2048), ledger_of(4)) is None


def test_other_phases_are_no_repeated_layers():
    longer = ledger_of(3)
    longer.mark(0, "optimizer")
    assert added_stretches(ledger_of(2), longer, ledger_of(4)) is None


def test_a_layer_that_adds_what_the_one_before_did_not_is_no_repeated_layer():
    assert added_stretches(ledger_of(2), ledger_of(3), ledger_of(5)) is None


def optimizer_step(layers):
    """Return a phase of two passes: a state a layer is made, then a gradient a layer let go of."""
    ledger = Ledger()
    ledger.mark(0, "backward")
    gradients = [ledger.allocate(512, kind=Kind.GRADIENT, origin="gradient") for _ in range(layers)]
    ledger.mark(0, "optimizer")
    for _ in range(layers):
        ledger.allocate(512, kind=Kind.OPTIMIZER_STATE, origin="exp_avg")
    for gradient in gradients:
        ledger.release(gradient)
    return ledger


def test_two_passes_in_a_phase_grow_each_by_itself():
    few, more, most = (optimizer_step(layers) for layers in (2, 3, 4))
    grown = grown_ledger(more, added_stretches(few, more, most), repeats=2)
    assert has_same_events(grown, optimizer_step(5))

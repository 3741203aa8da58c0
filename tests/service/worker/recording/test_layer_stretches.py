"""Stretches of hand-written ledgers."""

from plimsoll.service.worker.recording.layer_stretches import heights, layer_stretches, numbered_anew
from plimsoll.service.worker.recording.ledger import Kind, LayerMark, Ledger


def two_layers():
    """Return a pass forward and back: an embedding, what layers 4 and 5 keep, the head's output, an update."""
    ledger = Ledger()
    ledger.mark(0, "forward")
    embedded = ledger.allocate(512, kind=Kind.FORWARD_ACTIVATION, origin="embedding")
    ledger.mark_layer(4)
    kept = [ledger.allocate(1024, kind=Kind.FORWARD_ACTIVATION, origin="layers.4")]
    ledger.mark_layer(5)
    kept.append(ledger.allocate(1024, kind=Kind.FORWARD_ACTIVATION, origin="layers.5"))
    ledger.mark_layer(None)
    ledger.release(ledger.allocate(4096, kind=Kind.LOGITS, origin="head"))
    ledger.mark(0, "backward")
    for layer in (5, 4):
        ledger.mark_layer(layer)
        gradient = ledger.allocate(512, kind=Kind.UNREDUCED_GRADIENT, origin="mm")
        ledger.release(kept.pop())
        ledger.release(gradient)
    ledger.mark_layer(None)
    ledger.release(embedded)
    ledger.mark(0, "optimizer")
    return ledger


def test_a_pass_is_cut_at_its_layers():
    found = [(each.phase, each.layer, each.beside, each.is_behind) for each in layer_stretches(two_layers())]
    assert found == [
        ("forward", None, 4, False),
        ("forward", 4, None, False),
        ("forward", 5, None, False),
        ("forward", None, 5, True),
        ("backward", None, 5, False),
        ("backward", 5, None, False),
        ("backward", 4, None, False),
        ("backward", None, 4, True),
        ("optimizer", None, None, False),
    ]


def test_stretches_have_every_event_once():
    ledger = two_layers()
    stretches = list(layer_stretches(ledger))
    assert [each.first_event for each in stretches[1:]] == [each.end_event for each in stretches[:-1]]
    assert (stretches[0].first_event, stretches[-1].end_event) == (0, len(ledger.events))


def test_a_stretch_is_as_high_as_its_highest_moment_or_what_it_finds():
    ledger = two_layers()
    found = list(heights(ledger, layer_stretches(ledger)))
    # Forward: 512, + 1024, + 1024, + 4096. Backward finds 2560; each layer adds a gradient of 512 before it lets go.
    expected = [512, 1536, 2560, 6656, 2560, 3072, 2048, 512, 0]
    assert [each.allocated_bytes for each in found] == expected
    assert found[5].items["gradients"] == 512


def test_only_some_stretches_may_be_asked_for():
    ledger = two_layers()
    *_, last = layer_stretches(ledger)
    fifth = next(each for each in layer_stretches(ledger) if (each.phase, each.layer) == ("backward", 5))
    assert [each.allocated_bytes for each in heights(ledger, [fifth, last])] == [3072, 0]


def test_what_is_on_the_host_counts_in_no_stretch():
    ledger = Ledger()
    ledger.mark(0, "forward")
    ledger.allocate(512, kind=Kind.FORWARD_ACTIVATION, origin="waiting", on_host=True)
    (height,) = heights(ledger, layer_stretches(ledger))
    assert height.allocated_bytes == 0


def marked(*passes):
    ledger = Ledger()
    for phase, layers in passes:
        ledger.mark(0, phase)
        for layer in layers:
            ledger.mark_layer(layer)
            ledger.allocate(512, kind=Kind.FORWARD_ACTIVATION, origin="out")
    return ledger


def numbers(ledger):
    return [mark.layer for mark in ledger.layer_marks]


def test_grown_layers_are_counted_in_the_direction_of_their_pass():
    grown = marked(("forward", (0, 1, 7, 1, 2, None)), ("backward", (2, 1, 7, 1, 0)))
    anew = numbered_anew(grown, 10, 14)
    assert numbers(anew) == [10, 11, 12, 13, 14, None, 14, 13, 12, 11, 10]


def test_what_is_behind_the_layers_may_have_been_repeated_in_the_place_of_one():
    ledger = Ledger()
    ledger.mark(0, "forward")
    for first_event, layer in enumerate((0, 1, None, None, None)):
        ledger.layer_marks.append(LayerMark(first_event=first_event, phase=0, layer=layer))
    assert numbers(numbered_anew(ledger, 0, 3)) == [0, 1, 2, 3, None]


def test_a_pass_through_another_number_of_layers_leaves_none_marked():
    assert numbers(numbered_anew(marked(("forward", (0, 1, 2))), 0, 3)) == []

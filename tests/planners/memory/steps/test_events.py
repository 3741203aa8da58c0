"""Events that come again layer by layer, written once."""

from plimsoll.planners.memory.steps.events import Event, Events


def event(layer, total):
    return Event("forward and loss", layer, "activations", "kept", 1, (0, 0, 0, total, 0, 0), total)


def of_layers(*, further, more):
    """Return 7 held before the layers, 12 and 10 at one of them, which comes twice more, and 3 behind."""
    events = Events([event(None, 7), event(4, 12), event(4, 10)])
    events.repeat(1, 2, further=further, more=(0, 0, 0, more, 0, 0))
    events.written.append(event(None, 3))
    return events


def test_what_comes_again_is_of_layers_further_on_and_finds_what_those_before_left():
    assert [(each.layer, each.total) for each in of_layers(further=2, more=3)] == [
        *((None, 7), (4, 12), (4, 10)),
        *((6, 15), (6, 13), (8, 18), (8, 16)),
        (None, 3),
    ]


def test_the_most_is_held_at_the_last_of_layers_that_keep_something_and_at_the_first_of_those_that_let_go():
    most = of_layers(further=1, more=3).largest
    assert (most.layer, most.total, most.held) == (6, 18, (0, 0, 0, 18, 0, 0))
    most = of_layers(further=-1, more=-3).largest
    assert (most.layer, most.total) == (4, 12)


def test_of_equals_the_first_is_the_largest():
    assert of_layers(further=1, more=0).largest.layer == 4
    assert Events([event(1, 5), event(2, 5)]).largest.layer == 1


def test_layers_at_which_nothing_happens_are_not_written():
    events = Events([event(None, 7)])
    events.repeat(1, 5, further=1, more=(0,) * 6)
    assert (list(events), events.repeats) == ([event(None, 7)], [])

"""Layers that wait on interleaved stages, counted by hand from the order of the passes."""

import pytest

from plimsoll.planners.layouts.interleaving import MOST_ROUNDS, waiting_layers


def waiting(layers, degree, *, rounds=MOST_ROUNDS):
    """Return the most of all passes on each stage, that of the lowest chunk, and that of the highest."""
    found = waiting_layers(layers, degree)
    return [found[part * MOST_ROUNDS + rounds - 1].tolist() for part in range(3)]


def test_of_like_chunks_as_many_wait_as_passes_run_ahead_and_one():
    # Two stages of two chunks: 2 x 1 + 2 + 1 = 5 passes wait on the first, 3 on the last, of 4 layers each.
    assert waiting((4,) * 4, 2) == [[20.0, 12.0]] * 3


def test_one_round_of_micro_batches_holds_no_more_than_there_are():
    # Four passes of the first stage are all there are; two of the highest chunk are through before the lowest begins.
    most, lowest, highest = waiting((4,) * 4, 2, rounds=1)
    assert (most[0], lowest[0], highest[0]) == (16.0, 8.0, 16.0)


def test_of_unlike_chunks_the_most_is_when_the_larger_ones_wait():
    # The first stage has chunks of 0 and 3. Passes wait as chunk 0, 0, 1, 1, 0 when the first is differentiated: 6
    # layers; when two of chunk 1 are through, as 0, 0, 0, 0, 1: 3, and as the lowest is, two more go forward: 6.
    most, lowest, highest = waiting((0, 3, 3, 3), 2)
    assert (most[0], highest[0]) == (6.0, 6.0)
    assert lowest[0] == pytest.approx(6.0)
    # All chunks of the last are alike.
    assert most[1] == 9.0

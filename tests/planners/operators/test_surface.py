import numpy as np
import pytest

from plimsoll.planners.operators.surface import Grid, Surface, at_knots, corners

KNOTS = ((0, 1, 3), (2, 4))


def roofline(rows, columns):
    return rows * columns * 1e-9


def twice_as_long():
    return Surface(knots=KNOTS, log2_seconds=1 + at_knots(roofline, KNOTS), roofline=roofline)


def test_a_surface_takes_as_many_times_its_roofline_as_its_knots_say():
    assert twice_as_long().seconds(2, 8) == pytest.approx(2 * 2 * 8e-9)
    assert twice_as_long().seconds(5, 11) == pytest.approx(2 * 5 * 11e-9)


def test_between_knots_logarithms_run_straight():
    surface = Surface(knots=((0, 2),), log2_seconds=np.array([0.0, 4.0]), roofline=lambda size: size * 1e-9)

    assert surface.seconds([1, 2, 4]).tolist() == pytest.approx([1, 4, 16])


def test_beyond_the_last_knots_the_roofline_carries_on():
    surface = Surface(knots=((0, 2),), log2_seconds=np.array([0.0, 4.0]), roofline=lambda size: size * 1e-9)

    assert surface.seconds(40) == pytest.approx(160)
    assert surface.seconds(0.5) == pytest.approx(0.5)


def test_nothing_is_faster_than_its_roofline():
    surface = Surface(knots=((0, 2),), log2_seconds=np.array([-9.0, -9.0]), roofline=lambda size: np.sqrt(size))

    assert surface.seconds([1, 3, 9]).tolist() == pytest.approx([1, 3**0.5, 3])


def test_sizes_broadcast_to_one_shape():
    assert twice_as_long().seconds(np.ones((3, 1)), np.array([4, 8])).shape == (3, 2)


def test_sizes_alike_at_all_points_are_read_as_those_that_vary():
    random = np.random.default_rng(2)
    surface = Surface(knots=KNOTS, log2_seconds=random.uniform(0, 9, (3, 2)), roofline=roofline)
    rows = np.array([0.5, 1.0, 3.0, 8.0, 20.0])

    for columns in (2.0, 9.0, 31.0):
        assert surface.seconds(rows, columns) == pytest.approx(surface.seconds(rows, np.full(5, columns)))
        assert surface.seconds(3.0, columns) == pytest.approx(surface.seconds(rows, columns)[2])


def test_weights_of_corners_add_up_to_one():
    places, weights = corners(KNOTS, [np.array([1.0, 1.7, 8.0]), np.array([4.0, 9.0, 16.0])])

    assert places.shape == weights.shape == (3, 4)
    assert weights.sum(axis=1).tolist() == pytest.approx([1, 1, 1])
    assert at_knots(roofline, KNOTS).shape == (3, 2)


def test_values_of_another_shape_and_unordered_knots_are_refused():
    with pytest.raises(ValueError, match=r"\(3, 2\)"):
        Surface(knots=KNOTS, log2_seconds=np.ones((2, 2)), roofline=roofline)
    with pytest.raises(ValueError, match="ascend"):
        Surface(knots=((1, 0),), log2_seconds=np.zeros(2), roofline=roofline)


def test_values_that_fall_are_met_midway():
    line, square = Grid(knots=((0, 1, 2, 3),), grows=(0,)), Grid(knots=((0,), (0, 1)), grows=(0,))

    assert line.growing(np.array([1.0, 5.0, 3.0, 6.0])).tolist() == [1, 4, 4, 6]
    assert square.growing(np.array([[2.0, 1.0]])).tolist() == [[2, 1]]


def test_a_batch_that_shares_takes_no_longer_for_each_of_twice_as_many():
    line = Grid(knots=((0, 1, 2, 3),), grows=(0,), shares=(0,))
    # For each of 1, 2, 4 and 8: 0, 0, 2 and 1 doublings more. Midway between 2, 2, 2, 1 above and 0, 0, 0, 0 below.
    assert line.sharing(np.array([0.0, 1.0, 4.0, 4.0])).tolist() == [1, 2, 3, 3.5]
    assert line.sharing(np.array([5.0, 5.5, 6.0, 7.0])).tolist() == [5, 5.5, 6, 7]

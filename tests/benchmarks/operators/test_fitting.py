import numpy as np
import pytest

from benchmarks.operators.fitting import fitted
from plimsoll.planners.operators.surface import Grid, Surface, at_knots

GRID = Grid(knots=((0, 2, 4, 6), (0, 3, 6)), grows=(0, 1))


def roofline(rows, columns):
    return rows * columns * 1e-9


def measured(rows, columns):
    return 5e-9 + 1.5 * roofline(rows, columns)


def surface_of(sizes, seconds):
    found = fitted(roofline, GRID, sizes, seconds)
    return Surface(knots=GRID.knots, log2_seconds=found, roofline=roofline)


def test_a_surface_comes_back_from_its_own_rows():
    random = np.random.default_rng(2)
    sizes = [np.exp2(random.uniform(0, 6, 3000)) for _ in GRID.knots]
    surface = surface_of(sizes, measured(*sizes))

    assert np.median(np.abs(surface.seconds(*sizes) / measured(*sizes) - 1)) < 0.03


def test_a_few_wild_rows_do_not_move_it():
    sizes = [np.tile(np.exp2(np.arange(7.0)), 30), np.repeat(np.exp2(np.arange(6.0)), 35)]
    seconds = measured(*sizes)
    wild = np.where(np.arange(len(seconds)) % 20 == 0, 30 * seconds, seconds)
    surface = surface_of(sizes, wild)

    assert np.median(surface.seconds(*sizes) / seconds) == pytest.approx(1, abs=0.05)


def test_nothing_is_fitted_below_the_roofline():
    sizes = [np.array([1.0, 4.0, 16.0]), np.array([1.0, 8.0, 64.0])]

    assert fitted(roofline, GRID, sizes, 0.5 * roofline(*sizes)) == pytest.approx(at_knots(roofline, GRID.knots))

"""The distinct values among whole numbers that are small, as degrees of parallelism are."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.layouts.candidates import IntArray

# A table of the distinct values may be so many times as long as the values, and is never too long below the least.
MOST_TABLE_MULTIPLE = 4
LEAST_TABLE = 1024


def distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct values, none below 0, rising, and the place of each value among them, in the values' shape.

    Marking them in a table is several times faster than sorting them, where the table is not far larger.
    """
    span = int(values.max(initial=0)) + 1
    if span > MOST_TABLE_MULTIPLE * max(values.size, LEAST_TABLE):
        keys, inverse = np.unique(values, return_inverse=True)
        return keys, inverse.reshape(values.shape)
    is_there = np.zeros(span, dtype=bool)
    is_there[values] = True
    places: IntArray = is_there.cumsum() - 1
    return is_there.nonzero()[0], places[values]

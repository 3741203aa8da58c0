import numpy as np
import pytest

from plimsoll.planners.layouts.distinct import LEAST_TABLE, MOST_TABLE_MULTIPLE, distinct

LARGEST_IN_TABLE = MOST_TABLE_MULTIPLE * LEAST_TABLE - 1


# The last values come to a table, and one more to sorting.
@pytest.mark.parametrize("largest", [8, LARGEST_IN_TABLE, LARGEST_IN_TABLE + 1])
def test_values_stand_once_and_rising_and_lead_back(largest):
    values = np.array([[largest, 0, 4], [4, 4, largest]])
    keys, places = distinct(values)
    assert keys.tolist() == [0, 4, largest]
    assert places.tolist() == [[2, 0, 1], [1, 1, 2]]


def test_of_no_values_none_is_distinct():
    keys, places = distinct(np.array([], dtype=np.int64))
    assert keys.size == places.size == 0

"""How many examples show each law: a few that never change in `make test`, many new ones in `make properties`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

WIDE = "PLIMSOLL_PROPERTIES"


def law(few: int, many: int) -> Callable[[Any], Any]:
    """Return the settings of a law: `few` fixed examples, or `many` random ones where `PLIMSOLL_PROPERTIES` is wide."""
    is_wide = os.environ.get(WIDE) == "wide"
    return settings(
        max_examples=many if is_wide else few,
        derandomize=not is_wide,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )

"""Some hundred examples of what `make fuzz` tries for minutes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS

EXAMPLES = {"admission": 60, "config": 100}
OTHERWISE_EXAMPLES = 200


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_reader_answers_or_raises_what_it_declares(name: str):
    target = TARGETS[name]

    @settings(
        max_examples=EXAMPLES.get(name, OTHERWISE_EXAMPLES),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def search(data: Any) -> None:
        target.check(data.draw(target.examples))

    search()

"""What is read of an answer, by what was measured."""

import dataclasses

import pytest

from benchmarks.accuracy.asking import Refused
from benchmarks.accuracy.peak_memory.cases import ALLOCATED, CARD, FIRST_RANK, LAST_STAGE, RESERVED, MemoryCase
from benchmarks.accuracy.peak_memory.predictions import memory_predictions
from benchmarks.accuracy.peak_memory.report import judged, outcome

MEMORY = {
    "allocated_bytes": 50,
    "reserved_bytes": 60,
    "peak_bytes": 64,
    "peak_low_bytes": 48,
    "peak_high_bytes": 80,
    "phase": "backward",
    "stages": [
        {"peak_bytes": 64, "items": {"runtime": 4, "fragmentation": 10}},
        {"peak_bytes": 40, "items": {"runtime": 4, "fragmentation": 6}},
    ],
}
CASE = MemoryCase(
    case_id="one",
    source="a page",
    stack="a stack",
    request={"hardware": {"gpu": "h100-sxm-80gb"}},
    measured_bytes=40.0,
    kind=ALLOCATED,
    ran=True,
    is_point=True,
    is_seen=False,
)


class Answering:
    """A service with one answer."""

    def __init__(self, answer):
        self.given = answer

    def answer(self, _body):
        return self.given


def predicted(answer=None, **changes):
    answered = Answering({"fits": True, "plan": {"memory": MEMORY}} if answer is None else answer)
    (one,) = memory_predictions([dataclasses.replace(CASE, **changes)], answered)
    return one


@pytest.mark.parametrize(
    ("kind", "place", "read"),
    [
        (ALLOCATED, "", 50),
        (RESERVED, "", 60),
        (CARD, "", 64),
        # 64 less 4 of the runtime; and 40 less 4.
        (RESERVED, FIRST_RANK, 60),
        (RESERVED, LAST_STAGE, 36),
        # and 36 less 6 that the allocator keeps.
        (ALLOCATED, LAST_STAGE, 30),
        (CARD, LAST_STAGE, 40),
    ],
)
def test_the_figure_is_that_which_was_read(kind, place, read):
    assert predicted(kind=kind, place=place).predicted_bytes == read


def test_the_band_is_the_peak_s_in_proportion():
    # 48/64 and 80/64 of the estimate of 50; 40 measured of 50 lies at 0.8 of it.
    found = judged(predicted())
    assert found.band == pytest.approx((0.75, 1.25))
    assert found.ratio == pytest.approx(1.25)
    assert found.is_in_band


def test_a_refusal_is_no_verdict_and_a_miss():
    refused = predicted(Refused(code="impossible-layout", reasons=("too many",)))
    assert judged(refused).ratio is None
    assert not judged(refused).is_in_band
    assert outcome(refused).fits is None
    assert not outcome(refused).is_right

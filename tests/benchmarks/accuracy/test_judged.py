"""Tables of readings beside their answers."""

import pytest

from benchmarks.accuracy.judged import Judged, figures, parts_table, refusal_lines, source_table


def one(ratio, *, weight=1.0, seen=False, band=(0.9, 1.1)):
    refusal = "" if ratio is not None else "impossible"
    return Judged(
        source="a page",
        stack="a stack",
        gpu="a card",
        kind="dense",
        is_seen=seen,
        weight=weight,
        ratio=ratio,
        band=band,
        refusal=refusal,
    )


@pytest.mark.parametrize(
    ("ratio", "inside"),
    # The measured over the estimate is 1/ratio: 0.909, 0.893; 1.099, 1.124.
    [(1.1, True), (1.12, False), (0.91, True), (0.89, False), (None, False)],
)
def test_a_band_is_of_the_measured_over_the_estimate(ratio, inside):
    assert one(ratio).is_in_band is inside


def test_refusals_have_no_error_and_count_in_every_share():
    # Errors +20 % and -4 %: mean 12 %, bias +8 %; one of three within 5 %, and in its band.
    cells = figures([one(1.2), one(0.96), one(None)]).split()
    assert cells == ["3", "1", "12.0%", "12.0%", "+8.0%", "33%", "33%", "33%"]


def test_readings_weigh_as_sure_as_their_runs_are_known():
    # (1 x 20 % + 0.25 x 40 %) / 1.25 = 24 %; the median is not weighted.
    assert figures([one(1.2), one(1.4, weight=0.25)]).split()[2:4] == ["24.0%", "30.0%"]


def test_sources_that_fits_saw_stand_beside_the_others():
    line = list(parts_table([one(1.2, seen=True), one(1.1)], lambda each: each.kind))[2]
    seen, unseen = line.split(" | ")
    assert "20.0%" in seen
    assert "10.0%" in unseen


def test_each_source_says_whether_a_fit_saw_it():
    lines = list(source_table([one(1.2, seen=True), one(1.1)], lambda each: each.source))
    assert [line.split()[0] for line in lines[1:]] == ["saw", "-"]


def test_refusals_are_counted_by_source_and_reason():
    assert list(refusal_lines([("a page", "too many"), ("a page", "too many"), ("a page", "other")])) == [
        "    1 a page: other",
        "    2 a page: too many",
    ]

"""Tests of what comes in."""

from __future__ import annotations

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.questions import LengthDistribution
from plimsoll.planners.serving.traffic import SAMPLES, Traffic, mean_tokens, sample_tokens


def test_cached_tokens_are_not_computed_but_the_last_always_is():
    assert Traffic(input_tokens=1000, output_tokens=1, cached_fraction=0.25).prefill_tokens == 750
    assert Traffic(input_tokens=1000, output_tokens=1, cached_fraction=1).prefill_tokens == 1


@pytest.mark.parametrize(("drafted", "rate", "tokens"), [(0, 0.0, 1), (1, 0.8, 1.8), (3, 0.5, 1.875), (4, 1.0, 5)])
def test_a_step_yields_the_drafts_accepted_in_a_row_and_one_more(drafted, rate, tokens):
    # 1 + a + a^2 + ... + a^n.
    traffic = Traffic(input_tokens=1, output_tokens=1, draft_tokens=drafted, acceptance_fraction=rate)
    assert traffic.tokens_per_step == pytest.approx(tokens)


def test_a_mean_alone_stands_for_every_request():
    assert sample_tokens(LengthDistribution(mean=700), "/x") == (700,) * SAMPLES
    assert mean_tokens(LengthDistribution(mean=700.4), "/x") == 700


def test_a_histogram_is_sampled_in_equal_parts():
    # Half the requests up to 100 tokens, half between 100 and 1,000: 4 samples each.
    lengths = sample_tokens(LengthDistribution(lengths=(100, 1000), counts=(5, 5)), "/x")
    assert lengths[:4] == (100,) * 4
    assert lengths[4:] == tuple(round(100 * 10 ** ((part - 0.5) / 0.5)) for part in (0.5625, 0.6875, 0.8125, 0.9375))


def test_percentiles_are_met_and_their_ends_are_flat():
    # p50 to p90 rises tenfold in 0.4 of the requests; below the median everything is the median.
    lengths = sample_tokens(LengthDistribution(p50=100, p90=1000), "/x")
    assert lengths[:4] == (100,) * 4
    assert lengths[-1] == 1000
    assert mean_tokens(LengthDistribution(p50=100, p90=1000), "/x") == round(sum(lengths) / SAMPLES)


@pytest.mark.parametrize(
    "distribution",
    [
        LengthDistribution(mean=1000, p90=3000),
        LengthDistribution(mean=1000, p50=600),
        LengthDistribution(mean=1000, p50=600, p90=3000),
        LengthDistribution(mean=1000, p90=3000, p99=8000),
    ],
)
def test_a_mean_beside_percentiles_is_kept(distribution):
    lengths = sample_tokens(distribution, "/x")
    assert sum(lengths) / SAMPLES == pytest.approx(1000, rel=0.001)
    # Of eight samples the eighth is beyond the 90th percentile, the fifth just above the median.
    assert distribution.p90 is None or lengths[6] <= distribution.p90 <= lengths[7] + 1
    assert distribution.p50 is None or lengths[3] <= distribution.p50 <= lengths[4]


def test_a_mean_that_no_lengths_of_these_percentiles_have_is_refused():
    # Half the requests have at least 1,000 tokens.
    with pytest.raises(InvalidQuestion, match="leave out one of them") as caught:
        sample_tokens(LengthDistribution(mean=100, p50=1000), "/x")
    assert caught.value.pointer == "/x/mean"


@pytest.mark.parametrize(
    ("distribution", "pointer"),
    [
        (LengthDistribution(), "/x"),
        (LengthDistribution(p50=10, p90=5), "/x"),
        (LengthDistribution(lengths=(1, 2), counts=(1,)), "/x/histogram"),
        (LengthDistribution(lengths=(2, 1), counts=(1, 1)), "/x/histogram"),
        (LengthDistribution(lengths=(1, 2), counts=(0, 0)), "/x/histogram"),
    ],
)
def test_a_distribution_that_makes_no_sense_is_refused(distribution, pointer):
    with pytest.raises(InvalidQuestion) as caught:
        sample_tokens(distribution, pointer.removesuffix("/histogram"))
    assert caught.value.pointer == pointer

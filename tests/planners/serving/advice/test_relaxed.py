"""Tests of what a deployment keeps that misses what was asked."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.questions import ServiceLevel
from plimsoll.planners.serving.advice.changes import Change
from plimsoll.planners.serving.advice.relaxed import raised, relaxations
from plimsoll.planners.serving.planning import plan_serving
from plimsoll.planners.serving.search.search import search_fleet
from tests.planners.serving.factories import question

ONE_CARD = {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1}


def relaxed(asked):
    return [change.question for change in relaxations(search_fleet((asked,)).candidates[0])]


def test_nothing_is_relaxed_of_what_is_kept():
    assert relaxed(question(concurrency=4)) == []


def test_the_most_requests_are_named_that_run_at_once():
    (less,) = relaxed(question(max_num_seqs=16, concurrency=40, layout=ONE_CARD))
    assert less.concurrency == 16


def test_the_largest_rate_is_named_that_keeps_the_level():
    level = ServiceLevel(tpot_seconds=0.012)
    asked = question(requests_per_second=500.0, slo=level, layout=ONE_CARD)
    (less,) = relaxed(asked)
    assert plan_serving(less).meets
    assert not plan_serving(dataclasses.replace(less, requests_per_second=less.requests_per_second * 1.02)).meets


def test_a_level_that_no_load_keeps_is_named_as_it_is_kept_at_the_asked_load():
    asked = question(concurrency=8, slo=ServiceLevel(ttft_seconds=1.0, tpot_seconds=1e-5), layout=ONE_CARD)
    (wider,) = relaxed(asked)
    kept = plan_serving(asked).plan.performance.tpot_seconds
    assert (wider.concurrency, wider.slo.ttft_seconds) == (8, 1.0)
    assert kept <= wider.slo.tpot_seconds == pytest.approx(kept, rel=0.01)
    assert plan_serving(wider).meets


def test_both_are_named_where_neither_alone_does():
    asked = question(max_num_seqs=4, concurrency=8, slo=ServiceLevel(tpot_seconds=1e-5), layout=ONE_CARD)
    (less,) = relaxed(asked)
    assert less.concurrency == 4
    assert plan_serving(less).meets


def test_a_level_is_named_short_of_the_largest_rate():
    asked = question(requests_per_second=500.0, slo=ServiceLevel(ttft_seconds=1e-5), layout=ONE_CARD)
    (less,) = relaxed(asked)
    assert plan_serving(less).meets
    assert plan_serving(dataclasses.replace(less, requests_per_second=less.requests_per_second * 1.1)).meets_concurrency
    assert less.slo.ttft_seconds < 5.0


def test_a_rate_that_another_layout_keeps_is_named():
    asked = question(requests_per_second=9.0)
    offered = Change(kind="load", question=dataclasses.replace(asked, requests_per_second=1.0), reason="")
    found = raised(offered, asked, lambda changed: changed.requests_per_second <= 5.0).question.requests_per_second
    assert 5.0 - 8 / 2**6 - 0.01 <= found <= 5.0

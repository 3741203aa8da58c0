"""Tests of changed questions in the fields of a request."""

from __future__ import annotations

import dataclasses

from plimsoll.planners.questions import AllowedChoices, Disaggregation, ServiceLevel, ServingLayoutRequest
from plimsoll.planners.serving.advice.stated import as_found, on_gpus, stated_change
from plimsoll.planners.serving.search.search import search_fleet
from tests.planners.serving.factories import question


def test_the_same_question_states_nothing():
    assert stated_change(question(), question()) == {}


def test_what_differs_is_stated_by_its_field():
    asked = question(slo=ServiceLevel(ttft_seconds=1.0, tpot_seconds=0.1))
    changed = dataclasses.replace(asked, weights="fp8", slo=ServiceLevel(ttft_seconds=1.0, tpot_seconds=0.2))
    assert stated_change(asked, changed) == {"serving.weights": "fp8", "serving.slo.tpot_seconds": 0.2}


def test_what_was_left_to_choose_is_stated_as_it_was_chosen():
    asked = question(allowed=AllowedChoices(weights=("bf16", "fp8")))
    chosen = dataclasses.replace(asked, allowed=None, kv_cache="fp8")
    assert stated_change(asked, chosen) == {"serving.weights": "bf16", "serving.kv_cache": "fp8"}


def test_a_cache_that_followed_from_the_weights_is_stated_beside_others():
    asked = question(weights="fp16", kv_cache="fp16")
    changed = dataclasses.replace(asked, weights="fp8")
    assert stated_change(asked, changed) == {"serving.weights": "fp8", "serving.kv_cache": "fp16"}


def test_a_range_of_gpus_is_stated_as_the_number_that_was_found():
    asked = question(gpus=(1, 4), layout={"tensor_parallel": 1})
    assert stated_change(asked, on_gpus(asked, 4)) == {"hardware.gpus": 4}


def test_pools_are_stated_by_their_gpus():
    asked = question(gpus=4, disaggregated=Disaggregation(), requests_per_second=2.0)
    found = search_fleet((asked,)).candidates[0]
    fixed = as_found(asked, found)
    stated = stated_change(asked, fixed)
    assert sum(stated["serving.disaggregated"].values()) == 4
    assert stated["layout.data_parallel"] == found.replicas
    assert search_fleet((fixed,)).candidates[0].state == found.state


def test_degrees_of_mixtures_that_divide_nothing_are_stated_only_where_they_were_fixed():
    asked = question()
    found = search_fleet((asked,)).candidates[0]
    assert as_found(asked, found).layout == ServingLayoutRequest(
        tensor_parallel=1, pipeline_parallel=1, data_parallel=1
    )

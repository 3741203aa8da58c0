"""The result of a trace, of a plan that predicts another amount of each stage."""

import pytest

from plimsoll.service.worker.proofs.task import run
from tests.service.worker.cases import config, request


def told_stages(items_of_stage):
    """Return a plan's stages of a layer each, by their items."""
    return [
        {"stage": number, "layers": [number, number], "peak_bytes": 1, "items": items}
        for number, items in enumerate(items_of_stage)
    ]


@pytest.fixture(scope="module")
def result():
    layout = {"framework": "megatron", "zero_stage": 1, "pipeline_parallel": 3}
    stages = told_stages({"parameters": 1000 + number, "runtime": 7} for number in range(3))
    asked = request(allocated_bytes=5000, layout=layout, model=config(num_hidden_layers=3), stages=stages)
    return run(asked, lambda *_progress: None)


def test_what_is_predicted_is_of_the_stage_that_is_measured(result):
    peaks = [stage["peak_bytes"] for stage in result["stages"]]
    fullest = peaks.index(max(peaks))
    assert result["measured"]["peak_bytes"] == max(peaks)
    assert result["predicted"]["peak_bytes"] == result["predicted"]["items"]["parameters"] == 1000 + fullest
    assert result["relative_error"] == pytest.approx((1000 + fullest) / max(peaks) - 1)


def test_the_verdict_is_on_what_the_plan_promises_of_its_own_fullest_stage(result):
    layout = {"framework": "megatron", "zero_stage": 1, "pipeline_parallel": 3}
    stages = told_stages({"parameters": 1000, "runtime": 7} for _ in range(3))
    measured = result["measured"]["peak_bytes"]
    asked = request(allocated_bytes=measured, layout=layout, model=config(num_hidden_layers=3), stages=stages)
    assert run(asked, lambda *_progress: None)["verdict"] == "consistent"
    assert result["verdict"] == "refuted"

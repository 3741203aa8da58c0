"""Levels `trace` and `device` of a serving plan."""

import pytest

from plimsoll.service.ground.errors import NoSuitableDevice
from plimsoll.service.worker.proofs.serving import serving_verdict
from plimsoll.service.worker.proofs.task import run
from tests.service.worker.serving.cases import request


def silent(*_progress):
    return None


@pytest.mark.parametrize("level", ["trace", "device"])
def test_a_plan_that_predicts_what_was_held_is_consistent(level):
    first = run(request(level), silent)
    assert first["verdict"] == "refuted"
    measured = first["measured"]["items"]
    # The peak lies in a pass beside the cache; what it takes there above the weights is what is predicted.
    rest = first["measured"]["peak_bytes"] - measured["weights"] - measured["kv_cache"]
    result = run(request(level, items={**measured, "activations": rest}), silent)
    assert (result["level"], result["verdict"]) == (level, "consistent")
    assert result["relative_error"] == 0.0
    assert result["measured"]["reserved_bytes"] >= result["measured"]["peak_bytes"]
    assert [term["name"] for term in result["terms"]] == ["weights", "kv_cache", "activations"]
    assert result["traced_with"].startswith("transformers ")


def test_a_run_tells_its_speed_and_surroundings_beside_the_plan_s():
    result = run(request("device"), silent)
    assert result["speed"]["predicted_ttft_seconds"] == 0.1
    assert result["environment"]["type"] == "cpu"
    assert result["out_of_memory"] is None


def test_a_cache_larger_than_the_worker_s_memory_is_refused_with_the_way_out():
    with pytest.raises(NoSuitableDevice, match="smaller gpu_memory_utilization"):
        run(request("device", items={"kv_cache": 1 << 50}), silent)


def term(name, error):
    return {"name": name, "relative_error": error}


@pytest.mark.parametrize(
    ("weights", "cache", "activations", "peak", "verdict"),
    [
        (0.05, -0.05, 0.0, 0.0, "consistent"),
        (0.051, 0.0, 0.0, 0.0, "refuted"),
        (0.0, -0.051, 0.0, 0.0, "refuted"),
        (0.0, 0.0, 0.9, 0.05, "consistent"),  # judged within the peak
        (0.0, 0.0, 0.9, 0.051, "refuted"),
        (0.0, None, 0.0, 0.0, "refuted"),  # planned, and none was there
    ],
)
def test_weights_cache_and_peak_are_each_to_be_met(weights, cache, activations, peak, verdict):
    terms = [term("weights", weights), term("kv_cache", cache), term("activations", activations)]
    assert serving_verdict(terms, term("peak", peak)) == verdict

"""The entry of a validation job."""

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.service.worker.proofs.task import run
from tests.service.worker.cases import request


def test_a_traced_plan_is_refuted_and_says_by_how_much():
    said = []
    result = run(request(allocated_bytes=1), lambda *progress: said.append(progress))
    assert result["verdict"] == "refuted"
    assert result["relative_error"] == pytest.approx(1 / result["measured"]["peak_bytes"] - 1)
    assert [message for *_, message in said][:2] == ["building and sharding", "step 1 of 3"]
    assert said[-1][0] == said[-1][1]


def test_a_plan_that_predicts_what_accelerate_s_own_code_holds_is_confirmed():
    measured = run(request(), lambda *_progress: None)["measured"]["peak_bytes"]
    result = run(request(allocated_bytes=measured), lambda *_progress: None)
    assert (result["verdict"], result["relative_error"]) == ("confirmed", 0.0)
    assert result["traced_with"].startswith("transformers ")
    assert sum(result["measured"]["items"].values()) == measured
    assert measured <= result["measured"]["reserved_bytes"]
    assert max(point["allocated_bytes"] for point in result["timeline"]) == measured
    assert max(phase["peak_bytes"] for phase in result["phases"]) == measured
    assert any("2 of 3 micro-batches" in note for note in result["notes"])


def test_an_unknown_level_is_no_question():
    with pytest.raises(InvalidQuestion, match="guess"):
        run(request("guess"), lambda *_progress: None)

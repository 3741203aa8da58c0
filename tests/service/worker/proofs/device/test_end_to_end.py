"""A plan asked for, run for real by a worker on its CPU, and put on record, all through the API."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from plimsoll.client import Client
from plimsoll.service.jobs.answers import JobBody
from tests.api.questions import infer, train

# A tenth of a busy machine's time for two processes that load torch.
MOST_SECONDS = 600.0
LOOK_SECONDS = 0.5
TWO_RANKS = {"data_parallel": 2, "tensor_parallel": 1, "zero_stage": 3}


@pytest.fixture
def service(service_url: str, worker: None) -> Iterator[Client]:
    with Client(service_url) as opened:
        yield opened


def finished(service: Client, job: JobBody) -> JobBody:
    deadline = time.monotonic() + MOST_SECONDS
    while job.finished_at is None:
        assert time.monotonic() < deadline
        time.sleep(LOOK_SECONDS)
        job = service.job(job.job_id)
    assert job.state == "succeeded", job.error
    return job


@pytest.mark.slow
def test_both_ranks_of_a_training_plan_run_and_their_peak_is_what_was_planned(service: Client):
    question = train(
        hardware={"gpu": "h100-sxm-80gb", "gpus": 2},
        framework="accelerate",
        training={"micro_batch_size": 1, "recompute": "none", "fused_cross_entropy": False},
        layout=TWO_RANKS,
    )
    plan = service.plan_train(question)
    job = finished(service, service.validate(plan.plan_id, "device"))
    result = job.result
    assert result["verdict"] == "consistent"
    assert result["predicted"]["peak_bytes"] == plan.plan.memory.allocated_bytes
    assert abs(result["relative_error"]) <= result["tolerance_fraction"]
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1]
    assert result["step"]["collectives_from"] == "run"
    assert "device" in [group.level for group in service.accuracy().items]


@pytest.mark.slow
def test_a_serving_plan_runs_with_its_whole_cache(service: Client):
    # Three hundredths of the card are 2.4 GiB, which the host of a worker has.
    question = infer(serving={"engine": "vllm", "gpu_memory_utilization": 0.03, "concurrency": 2})
    plan = service.plan_infer(question)
    result = finished(service, service.validate(plan.plan_id, "device", device="cpu")).result
    terms = {term["name"]: term for term in result["terms"]}
    assert terms["kv_cache"]["measured_bytes"] == plan.plan.memory.items.kv_cache
    assert terms["weights"]["relative_error"] == pytest.approx(0.0, abs=0.05)
    assert result["batch"] == 2
    assert result["speed"]["decode_step_seconds"] > 0

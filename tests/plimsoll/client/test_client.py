"""Both clients against prepared answers: what they send, send again, and make of what comes back."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from plimsoll.client import (
    AsyncClient,
    Client,
    JobUnfinished,
    NotFound,
    TryLater,
    UnexpectedAnswer,
    Unreachable,
    WrongQuestion,
)
from tests.plimsoll.client.answers import answering, problem, waits

BROKEN = httpx.ConnectError("refused")
JOB = {
    "job_id": "1", "kind": "validate", "state": "queued", "plan_id": None, "queue": "cpu",
    "progress": {"done": 0, "total": 0, "unit": "", "message": ""}, "attempts": 0, "max_attempts": 3,
    "cancel_requested": False, "worker": None, "created_at": "2026-01-01T00:00:00Z", "started_at": None,
    "finished_at": None, "result": None, "error": None,
}  # fmt: skip


def accuracy() -> httpx.Response:
    return httpx.Response(200, json={"measurements": 0, "items": [], "points": []})


def client(transport: httpx.MockTransport, **more: Any) -> Client:
    return Client(transport_used=transport, **{"sleep": lambda _: None, **more})


def test_the_key_and_an_idempotency_key_go_with_what_queues_work():
    transport, asked = answering(httpx.Response(202, json=JOB))
    with client(transport, key="plimsoll_k") as service:
        assert service.validate("a/b", "count").state == "queued"
    assert asked[0].url.raw_path == b"/plans/a%2Fb/validate"
    assert asked[0].headers["authorization"] == "Bearer plimsoll_k"
    assert asked[0].headers["idempotency-key"]
    assert json.loads(asked[0].content) == {"level": "count"}


def test_a_device_is_named_where_one_is_asked_for():
    transport, asked = answering(httpx.Response(202, json=JOB))
    with client(transport) as service:
        service.validate("a", "device", device="gpu", any_gpu_kind=True)
    assert json.loads(asked[0].content) == {"level": "device", "device": "gpu", "any_gpu_kind": True}


def test_the_same_idempotency_key_goes_with_every_try():
    transport, asked = answering(BROKEN, problem(503), httpx.Response(202, json=JOB))
    with client(transport) as service:
        service.validate("a", "count")
    assert len(asked) == 3
    assert len({request.headers["idempotency-key"] for request in asked}) == 1


def test_a_key_of_the_callers_own_is_sent():
    transport, asked = answering(httpx.Response(202, json=JOB))
    with client(transport) as service:
        service.validate("a", "count", idempotency_key="mine")
    assert asked[0].headers["idempotency-key"] == "mine"


def test_retry_after_is_waited():
    slept, sleep = waits()
    transport, _ = answering(problem(429, headers={"retry-after": "4"}), accuracy())
    with client(transport, sleep=sleep) as service:
        assert service.accuracy().measurements == 0
    assert slept == [4.0]


def test_a_report_is_not_sent_twice_by_itself():
    transport, asked = answering(BROKEN)
    with client(transport) as service, pytest.raises(Unreachable, match=r"127\.0\.0\.1:8000"):
        service.report({"peak_bytes": 1})
    assert len(asked) == 1


def test_a_refusal_carries_the_problem_document():
    transport, _ = answering(problem(422, errors=[{"pointer": "/a", "detail": "No."}], nearest=["b"]))
    with client(transport) as service, pytest.raises(WrongQuestion) as refused:
        service.plan_train({})
    assert [error.pointer for error in refused.value.problem.errors] == ["/a"]
    assert refused.value.problem.model_extra == {"nearest": ["b"]}


def test_what_stays_away_is_raised_in_the_end():
    transport, asked = answering(problem(503))
    with client(transport) as service, pytest.raises(TryLater):
        service.accuracy()
    assert len(asked) == 4  # once, and three times again


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(500, text="oh"),
        httpx.Response(200, json={"other": 1}),
        httpx.Response(200, content=b"{", headers={"content-type": "application/json"}),
        httpx.Response(400, content=b"{}", headers={"content-type": "application/problem+json"}),
    ],
)
def test_an_answer_of_something_else_is_told_apart(answer: httpx.Response):
    transport, _ = answering(answer)
    with client(transport) as service, pytest.raises(UnexpectedAnswer):
        service.accuracy()


def test_filters_that_are_absent_are_not_sent():
    transport, asked = answering(httpx.Response(200, json={"items": [], "next_cursor": None}))
    with client(transport) as service:
        service.plans(kind="train", fits=True, model=None)
    assert asked[0].url.query == b"kind=train&fits=true"


def test_a_job_is_waited_for_and_its_progress_told():
    done = {**JOB, "state": "succeeded", "result": {"x": 1}}
    transport, _ = answering(httpx.Response(200, json=JOB), httpx.Response(200, json=done))
    seen: list[str] = []
    with client(transport) as service:
        assert service.wait("1", on_progress=lambda job: seen.append(job.state)).result == {"x": 1}
    assert seen == ["queued"]


def test_a_job_that_does_not_end_in_time_is_told():
    transport, _ = answering(httpx.Response(200, json=JOB))
    with client(transport) as service, pytest.raises(JobUnfinished, match="still queued"):
        service.wait("1", timeout_seconds=0.0)


def test_text_is_text():
    transport, _ = answering(httpx.Response(200, text="torchrun train.py\n"))
    with client(transport) as service:
        assert service.artifact("1", "torchrun") == "torchrun train.py\n"


async def test_the_asynchronous_client_sends_again_too():
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    transport, asked = answering(BROKEN, accuracy())
    async with AsyncClient(transport_used=transport, sleep=sleep) as service:
        assert (await service.accuracy()).items == ()
    assert (len(asked), len(slept)) == (2, 1)


async def test_the_asynchronous_client_waits_for_jobs_and_raises_the_same_errors():
    done = {**JOB, "state": "failed"}
    transport, _ = answering(httpx.Response(200, json=done), problem(404))
    async with AsyncClient(transport_used=transport) as service:
        assert (await service.wait("1")).state == "failed"
        with pytest.raises(NotFound):
            await service.job("2")

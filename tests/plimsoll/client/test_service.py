"""The client against the service itself: every call is answered as its type says."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from plimsoll.api.app import create_app
from plimsoll.client import AsyncClient, Client, NotFound, WrongQuestion, calls
from plimsoll.service.ground.settings import Settings
from plimsoll.service.persistence.records import FINAL_STATES
from plimsoll.service.requests.training import TrainRequest
from tests.api.questions import TINY_CONFIG, infer, train


@pytest.fixture
def service(service_url: str) -> Iterator[Client]:
    with Client(service_url) as opened:
        yield opened


def test_a_plan_is_made_found_again_and_listed(service: Client):
    made = service.plan_train(TrainRequest.model_validate(train()))
    assert service.plan(made.plan_id) == made
    assert made.plan_id in [line.plan_id for line in service.plans(kind="train").items]
    assert "torchrun" in service.artifact(made.plan_id, "torchrun")


def test_a_deployment_is_sized(service: Client):
    assert service.plan_infer(infer()).plan.kv.tokens > 0


def test_the_catalogues_and_the_record_are_read(service: Client):
    assert service.gpu("h100").id == "h100-sxm-80gb"
    assert service.model("llama-3.1-8b").parameters.total == service.describe("llama-3.1-8b").parameters.total
    assert service.models().items
    assert service.hardware().clusters
    assert service.report({"framework": "fsdp2", "gpu": "h100", "model": "m", "peak_bytes": 1}).measurement_ids
    assert service.accuracy().measurements == 0  # of those with a prediction beside them


def test_jobs_are_queued_and_cancelled(service: Client):
    request = {"model": {"config": TINY_CONFIG}, "scheme": "int8"}
    queued = service.quantize(request, idempotency_key="once").job
    assert service.quantize(request, idempotency_key="once").job.job_id == queued.job_id
    assert service.cancel(queued.job_id).state in FINAL_STATES
    assert queued.job_id in [job.job_id for job in service.jobs().items]


def test_refusals_are_exceptions(service: Client):
    with pytest.raises(NotFound):
        service.plan("0")
    with pytest.raises(WrongQuestion) as refused:
        service.plan_train(train(model="llama-3.1-9b"))
    assert [error.pointer for error in refused.value.problem.errors] == ["/model"]


def test_both_clients_have_the_same_methods():
    def shape(kind: type) -> dict[str, list[str]]:
        named = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(each).parameters) for name, each in named if not name.startswith("_")}

    assert shape(Client) == shape(AsyncClient)


def test_every_call_is_of_a_route_that_there_is():
    app = create_app(Settings(database_url="postgresql://nobody@127.0.0.1/none"))
    paths = app.openapi()["paths"]
    made = [
        calls.plan_train({}), calls.plan_infer({}), calls.plan("{plan_id}"), calls.plans(), calls.models(),
        calls.validate("{plan_id}", "count"), calls.quantize({}), calls.job("{job_id}"), calls.jobs(),
        calls.cancel("{job_id}"), calls.describe("m"), calls.hardware(), calls.gpu("{id}"), calls.report({}),
        calls.calibrate("{id}", {}), calls.accuracy(), calls.accuracy_csv(),
        calls.artifact("{plan_id}", "{name}"),
    ]  # fmt: skip
    for call in made:
        assert call.method.lower() in paths[call.path.replace("%7B", "{").replace("%7D", "}")]

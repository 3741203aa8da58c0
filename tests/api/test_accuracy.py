"""Reports from real runs, and how far predictions were off."""

from __future__ import annotations

import csv
import io

import httpx
import pytest
from fastapi import FastAPI

from plimsoll.api.app import create_app
from plimsoll.service.ground.settings import Settings
from plimsoll.service.measurements.accuracy_points import CSV_COLUMNS
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.paging import LARGEST_PAGE
from tests.api.questions import infer, train
from tests.service.persistence.factories import a_measurement, a_plan


@pytest.fixture
def record(app: FastAPI, client: httpx.AsyncClient) -> Database:
    """Return the database of the running application."""
    del client  # It has to run.
    database: Database = app.state.services.database
    return database


def lines_of(response: httpx.Response) -> list[dict[str, str]]:
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(response.text)))


async def test_a_report_is_set_beside_its_plan(client: httpx.AsyncClient):
    plan = (await client.post("/plan/train", json=train())).json()
    peak_bytes, seconds = plan["plan"]["memory"]["peak_bytes"], plan["plan"]["step"]["seconds"]
    body = {"plan_id": plan["plan_id"], "peak_bytes": 2 * peak_bytes, "step_seconds": seconds / 2, "source": "me"}
    report = (await client.post("/measurements", json=body)).json()
    # Half of what was measured: -50 %; twice: +100 %.
    assert [entry["relative_error"] for entry in report["comparisons"]] == pytest.approx([-0.5, 1.0])
    accuracy = (await client.get("/accuracy")).json()
    speed, size = accuracy["points"]
    assert (size["quantity"], size["predicted"], size["measured"]) == ("peak_bytes", peak_bytes, 2 * peak_bytes)
    assert (speed["level"], speed["quantity"]) == ("run-speed", "step_seconds")
    groups = {group["level"]: group for group in accuracy["items"]}
    assert groups["run"]["mean_relative_error"] == pytest.approx(-0.5)
    assert groups["run-speed"]["worst_absolute_relative_error"] == pytest.approx(1.0)


@pytest.mark.parametrize("quantity", ["peak_bytes", "allocated_bytes", "reserved_bytes"])
async def test_a_report_of_more_than_the_card_holds_is_refused(client: httpx.AsyncClient, quantity: str):
    plan = (await client.post("/plan/train", json=train())).json()
    before = (await client.get("/accuracy")).json()["measurements"]
    response = await client.post("/measurements", json={"plan_id": plan["plan_id"], quantity: 10**15})
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == [f"/{quantity}"]
    assert (await client.get("/accuracy")).json()["measurements"] == before


async def test_a_report_of_a_serving_run_is_set_beside_its_plan(client: httpx.AsyncClient):
    plan = (await client.post("/plan/infer", json=infer())).json()
    body = {"plan_id": plan["plan_id"], "kv_tokens": plan["plan"]["kv"]["tokens"]}
    report = (await client.post("/measurements", json=body)).json()
    [comparison] = report["comparisons"]
    assert comparison["relative_error"] == 0.0


async def test_a_report_without_a_plan_is_kept_without_an_error(client: httpx.AsyncClient):
    body = {"framework": "ddp", "gpu": "h100-sxm-80gb", "model": "mine", "peak_bytes": 10**10}
    response = await client.post("/measurements", json=body)
    assert response.status_code == 201
    [comparison] = response.json()["comparisons"]
    assert comparison["relative_error"] is None
    accuracy = (await client.get("/accuracy")).json()
    assert "ddp" not in [group["framework"] for group in accuracy["items"]]
    assert "ddp" not in [point["framework"] for point in accuracy["points"]]


async def test_a_report_of_another_run_or_of_nothing_planned_is_refused(client: httpx.AsyncClient):
    plan_id = (await client.post("/plan/train", json=train())).json()["plan_id"]
    for body, pointer in (
        ({"plan_id": plan_id, "gpu": "a100-sxm-80gb", "peak_bytes": 1}, "/gpu"),
        ({"plan_id": plan_id, "kv_tokens": 1}, "/kv_tokens"),
    ):
        response = await client.post("/measurements", json=body)
        assert response.status_code == 422
        assert [error["pointer"] for error in response.json()["errors"]] == [pointer]
    assert (await client.post("/measurements", json={"plan_id": "none", "peak_bytes": 1})).status_code == 404


async def test_a_report_may_name_the_gpu_and_the_model_by_alias(client: httpx.AsyncClient):
    plan = (await client.post("/plan/train", json=train(model="llama-3.2-1b"))).json()
    body = {"plan_id": plan["plan_id"], "gpu": "H100", "model": "Llama-3.2-1B", "step_seconds": 1.0}
    assert (await client.post("/measurements", json=body)).status_code == 201
    groups = (await client.get("/accuracy")).json()["items"]
    assert {group["gpu"] for group in groups if group["level"] == "run-speed"} == {"h100-sxm-80gb"}


@pytest.mark.parametrize(
    ("path", "accept", "is_csv"),
    [
        ("/accuracy?format=csv", "application/json", True),
        ("/accuracy", "text/csv", True),
        ("/accuracy", "application/json;q=0.5, text/csv", True),
        ("/accuracy", "*/*", False),
        ("/accuracy?format=json", "text/csv", False),
    ],
)
async def test_the_record_is_csv_where_that_is_asked_for(
    client: httpx.AsyncClient, path: str, accept: str, is_csv: bool
):
    response = await client.get(path, headers={"accept": accept})
    assert response.headers["content-type"].startswith("text/csv") == is_csv


async def test_a_format_that_there_is_not_is_refused(client: httpx.AsyncClient):
    assert (await client.get("/accuracy?format=xml")).status_code == 422


async def test_a_line_of_csv_is_a_measurement_with_what_was_predicted(client: httpx.AsyncClient):
    plan = (await client.post("/plan/train", json=train(model="qwen3-0.6b"))).json()
    body = {"plan_id": plan["plan_id"], "peak_bytes": 2 * plan["plan"]["memory"]["peak_bytes"], "source": "csv"}
    number = (await client.post("/measurements", json=body)).json()["measurement_ids"][0]
    (line,) = [line for line in lines_of(await client.get("/accuracy?format=csv")) if line["source"] == "csv"]
    assert tuple(line) == CSV_COLUMNS
    assert (line["measurement_id"], line["level"], line["family"]) == (str(number), "run", "qwen3")
    assert (line["quantity"], line["plan_id"]) == ("peak_bytes", plan["plan_id"])
    # Half of what was measured: -50 %.
    assert (int(line["measured"]), float(line["relative_error"])) == (body["peak_bytes"], -0.5)


async def test_every_measurement_is_a_line_however_many_pages_there_are(client: httpx.AsyncClient, record: Database):
    before = len(lines_of(await client.get("/accuracy?format=csv")))
    for _ in range(LARGEST_PAGE + 1):
        await record.measurements.add(a_measurement())
    lines = lines_of(await client.get("/accuracy?format=csv"))
    assert len(lines) == before + LARGEST_PAGE + 1
    assert len({line["measurement_id"] for line in lines}) == len(lines)


async def test_what_a_spreadsheet_would_run_is_text(client: httpx.AsyncClient, record: Database):
    await record.measurements.add(a_measurement(source="=HYPERLINK()", model="-1,\n", predicted={}))
    line = lines_of(await client.get("/accuracy?format=csv"))[0]
    assert (line["source"], line["model"]) == ("'=HYPERLINK()", "'-1,\n")
    assert (line["predicted"], line["measured"], line["plan_id"]) == ("", "10", "")


async def test_families_stand_apart(client: httpx.AsyncClient, record: Database):
    for family in ("llama", "qwen3"):
        await record.plans.put(a_plan(family, model_config={"model_type": family}))
        await record.measurements.add(a_measurement(plan_id=family, gpu="apart"))
    groups = (await client.get("/accuracy")).json()["items"]
    assert [group["family"] for group in groups if group["gpu"] == "apart"] == ["llama", "qwen3"]


async def test_measurements_are_counted_among_what_their_caller_stores(module_database_url: str):
    app = create_app(Settings(database_url=module_database_url, key_stored_bytes_per_day=100))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    run = {"framework": "fsdp2", "gpu": "h100-sxm-80gb", "model": "mine", "peak_bytes": 10**9}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        assert (await client.post("/measurements", json=run)).status_code == 201
        refused = await client.post("/measurements", json=run)
    # Each takes some 200 bytes: names, the figure, and where it is from.
    assert (refused.status_code, refused.json()["code"]) == (429, "storage-limit-reached")
    assert int(refused.headers["retry-after"]) > 0

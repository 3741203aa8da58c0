"""Routes are found at once, and those that the framework would find."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Match

from plimsoll.api.route_table import RouteTable
from plimsoll.api.routes.plans import list_plans


def asked(method: str, path: str) -> dict[str, object]:
    return {"type": "http", "method": method, "path": path, "root_path": ""}


def test_every_route_is_found_by_an_address_of_its_own(app: FastAPI):
    table = RouteTable(app.state.routes)
    assert len(app.state.routes) >= 30
    for route in app.state.routes:
        # What fills in a part is no route's own word.
        path = route.path.replace("{", "").replace("}", "").replace(":path", "")
        for method in route.methods:
            match, found = table.matches(asked(method, path))
            assert (match, found["route"]) == (Match.FULL, route), route.path


def test_of_two_routes_that_match_the_first_one_answers(app: FastAPI):
    found = RouteTable(app.state.routes).matches(asked("GET", "/plans"))[1]
    assert found["route"].name == list_plans.__name__


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/plans"), ("GET", "/nowhere"), ("GET", "/plans/a/b/c/d")])
def test_what_no_route_answers_is_left_to_the_framework(app: FastAPI, method: str, path: str):
    assert RouteTable(app.state.routes).matches(asked(method, path)) == (Match.NONE, {})


async def test_the_framework_refuses_it(client: httpx.AsyncClient):
    assert (await client.delete("/plans")).status_code == 405
    assert (await client.get("/nowhere")).status_code == 404

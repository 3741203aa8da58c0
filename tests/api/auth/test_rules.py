"""Every route has a rule on purpose, and what has none is closed."""

from __future__ import annotations

import pytest

from plimsoll.api.app import create_app
from plimsoll.api.auth.rules import need_of
from plimsoll.service.ground.settings import Settings

CONTRACT = create_app(Settings()).openapi()

# Whoever adds a route that needs nothing adds it here too.
NEEDS_NOTHING = {("get", "/healthz"), ("get", "/readyz"), ("get", "/"), ("get", "/ui")}


def test_no_other_route_needs_nothing():
    free = {
        (method, path)
        for path, operations in CONTRACT["paths"].items()
        for method in operations
        if need_of(method.upper(), path) == "nothing"
    }
    assert free <= NEEDS_NOTHING | {(method, path) for method, path in free if path.startswith("/ui/")}


def test_routes_that_need_a_key_declare_it_and_their_refusals():
    assert CONTRACT["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
    for path, operations in CONTRACT["paths"].items():
        for method, operation in operations.items():
            if (method, path) not in NEEDS_NOTHING and not path.startswith("/ui/"):
                assert operation["security"][0].keys() == {"apiKey"}, path
                assert {"401", "403", "429"} <= operation["responses"].keys(), path


@pytest.mark.parametrize(
    ("method", "path", "need"),
    [
        ("GET", "/somewhere/new", "any-key"),
        ("POST", "/healthz", "any-key"),
        ("HEAD", "/healthz", "nothing"),
        ("GET", "/healthz/", "any-key"),
        ("GET", "//healthz", "any-key"),
        ("GET", "/uix", "any-key"),
        ("GET", "/ui/plans", "nothing"),
        ("POST", "/plan/train", "plan"),
        ("POST", "/plans/p/validate", "validate"),
        ("DELETE", "/hardware/h100/calibration", "admin"),
        ("DELETE", "/measurements/7", "admin"),
        ("GET", "/hardware/h100/calibration", "any-key"),
        ("PATCH", "/plans/p", "plan"),
        ("PUT", "/hardware/h100\n/calibration", "admin"),
        ("GET", "/plans/p\n", "plan"),
    ],
)
def test_a_rule_holds_for_its_own_method_and_path(method: str, path: str, need: str):
    assert need_of(method, path) == need

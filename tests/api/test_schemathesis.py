"""Requests made up from the contract: whatever is sent, the answer is one that the contract declares."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    negative_data_rejection,
    positive_data_acceptance,
    unsupported_method,
)

from plimsoll.api.app import create_app
from plimsoll.service.ground.settings import Settings

# The whole takes under a minute on two cores; `schemathesis run` with more finds more.
EXAMPLES_A_ROUTE = 5
START_SECONDS = 240
# A search that takes long on a busy machine is no finding.
REQUEST_SECONDS = 600.0

# 501 is an answer here, and declared; names and sizes that no schema can know are refused with 422;
# and what is wrong as a whole number (1.0) is right to this service.
LEFT_OUT = [not_a_server_error, positive_data_acceptance, negative_data_rejection, unsupported_method]

schema = schemathesis.openapi.from_dict(create_app(Settings()).openapi())


@pytest.fixture(scope="module")
def base_url(module_database_url: str) -> Iterator[str]:
    """Return where the service listens, in a thread of its own, on a free port of this machine."""
    app = create_app(Settings(database_url=module_database_url, request_timeout_seconds=REQUEST_SECONDS))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=2))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(START_SECONDS)


@pytest.mark.slow
@schema.parametrize()
@settings(
    max_examples=EXAMPLES_A_ROUTE,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_declared(case: schemathesis.Case, base_url: str):
    response = case.call(base_url=base_url, timeout=2 * REQUEST_SECONDS)
    assert response.status_code < 500 or response.status_code == 501, response.text
    case.validate_response(response, excluded_checks=LEFT_OUT)

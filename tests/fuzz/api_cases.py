"""Requests made up from the contract, until there were so many: `python -m tests.fuzz.api_cases --cases 50000`.

Every operation in turn gets a round of examples from another seed. Each answer must be one that the
contract declares; what fails is printed with the request that shows it, and counted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import hypothesis
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    negative_data_rejection,
    positive_data_acceptance,
    unsupported_method,
)

from benchmarks.load.server import running_api
from plimsoll.api.app import create_app
from plimsoll.service.ground.settings import Settings

# 501 is an answer here, and declared; names and sizes that no schema can know are refused with 422;
# and what is wrong as a whole number (1.0) is right to this service.
LEFT_OUT = [not_a_server_error, positive_data_acceptance, negative_data_rejection, unsupported_method]

EXAMPLES_A_ROUND = 100
# A search that takes long on a busy machine is no finding.
REQUEST_SECONDS = 600.0
CASE_TIMEOUT_SECONDS = 2 * REQUEST_SECONDS
# Waiting jobs up to this one are taken, later ones are refused: both answers are seen.
QUEUE_LIMIT = 5_000

schema = schemathesis.openapi.from_dict(create_app(Settings()).openapi())


def check(case: schemathesis.Case, base_url: str) -> int:
    """Send a request and return the status of its answer; AssertionErrors say what the contract does not declare."""
    response = case.call(base_url=base_url, timeout=CASE_TIMEOUT_SECONDS)
    assert response.status_code < 500 or response.status_code == 501, response.text
    case.validate_response(response, excluded_checks=LEFT_OUT)
    return response.status_code


def run(cases: int, seconds: float, base_url: str) -> int:
    """Send so many requests, or for so long; print the counts and return how many operations failed."""
    operations = [found.ok() for found in schema.get_all_operations()]
    statuses: Counter[int] = Counter()
    failures: dict[str, str] = {}
    deadline = time.monotonic() + seconds
    seed = 0
    while statuses.total() < cases and time.monotonic() < deadline:
        seed += 1
        for operation in operations:
            if statuses.total() >= cases or operation.label in failures:
                continue

            @hypothesis.seed(seed)
            @settings(
                max_examples=EXAMPLES_A_ROUND, database=None, deadline=None, suppress_health_check=list(HealthCheck)
            )
            @given(case=operation.as_strategy())
            def one_round(case: schemathesis.Case) -> None:
                statuses[check(case, base_url)] += 1

            try:
                one_round()
            except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
                failures[operation.label] = traceback.format_exc()
                print(f"FAILED {operation.label}\n{failures[operation.label][-6000:]}", flush=True)
        print(f"{statuses.total()} cases, {dict(sorted(statuses.items()))}, {len(failures)} failed", flush=True)
    return len(failures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=50_000)
    parser.add_argument("--minutes", type=float, default=120.0, help="stop after so long, however few they were")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plimsoll-fuzz-") as folder:
        with running_api(Path(folder), queue_limit=QUEUE_LIMIT, request_timeout_seconds=REQUEST_SECONDS) as (
            base_url,
            _,
        ):
            failed = run(asked.cases, 60 * asked.minutes, base_url)
        print((Path(folder) / "api.log").read_text()[-4000:])
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())

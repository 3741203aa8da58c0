"""A running service to ask, for the questions that once went wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx
import pytest

DEFAULT_URL = "http://127.0.0.1:8000"
SLOWEST_ANSWER_SECONDS = 60.0


@pytest.fixture(scope="session")
def service() -> Iterator[httpx.Client]:
    """A client of the service at `PLIMSOLL_URL`, with the key in `PLIMSOLL_API_KEY` where it asks for one."""
    key = os.environ.get("PLIMSOLL_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(
        base_url=os.environ.get("PLIMSOLL_URL", DEFAULT_URL), headers=headers, timeout=SLOWEST_ANSWER_SECONDS
    ) as client:
        yield client

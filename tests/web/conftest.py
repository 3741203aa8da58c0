"""A service and a browser that the tests of the pages share, and a picture of every page that was tested."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web.browser import Browser, chromium
from tests.web.running import RunningService, running_service

# `make e2e-web` names the folder; without one no picture is kept.
SCREENSHOTS = os.environ.get("PLIMSOLL_SCREENSHOTS")


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Return a running service."""
    with running_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory, service: RunningService) -> Iterator[Browser]:
    """Return a browser whose pages are the service's."""
    with Browser(str(chromium()), tmp_path_factory.mktemp("profile"), service.address) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Browser]:
    """Return the browser; afterwards its page is pictured, and an error that the test did not take away fails it."""
    yield browser
    if SCREENSHOTS:
        folder = Path(SCREENSHOTS)
        folder.mkdir(parents=True, exist_ok=True)
        # A path among the parameters is part of the name.
        name = request.node.name.replace("/", "_")
        (folder / f"{name}.png").write_bytes(browser.picture())
    browser.value("sessionStorage.clear()")
    said, browser.errors = browser.errors, []
    assert said == []

"""The pages in a real browser, against the running service. Skipped where there is no Chromium."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from api.app import create_app
from service.settings import Settings
from tests.web.browser import Browser, chromium

CHROMIUM = chromium()
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install Debian's `chromium`, or name one in CHROMIUM"),
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
]

VERDICT = "document.querySelector('#verdict').innerText"
SETTLED = "!document.querySelector('.waiting') && document.querySelectorAll('#parts .part').length > 4"
CATALOGUES = "document.querySelectorAll('#models option').length > 10"


@pytest.fixture(scope="module")
def address(module_database_url: str) -> Iterator[str]:
    """Return the address of a running service."""
    app = create_app(Settings(database_url=module_database_url))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a browser that the tests share."""
    with Browser(str(CHROMIUM), tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_errors(browser: Browser) -> Iterator[None]:
    """Fail where the console showed an error that the test did not take away."""
    yield
    browser.value("0")
    said, browser.errors = browser.errors, []
    assert said == []


def test_a_job_is_planned_without_a_word_typed(browser: Browser, address: str):
    browser.visit(address)
    browser.until(f"{CATALOGUES} && {SETTLED}")
    assert browser.value(VERDICT).startswith("Fits")


def test_the_answer_follows_what_is_typed_and_the_address_restores_it(browser: Browser, address: str):
    browser.visit(address)
    browser.until(f"{CATALOGUES} && {SETTLED}")
    browser.fill("layout.tensor_parallel", "4")
    browser.until(f"{SETTLED} && {VERDICT}.includes('tensor 4')")
    link = browser.value("location.href")
    browser.visit("about:blank")
    browser.visit(link)
    browser.until(f"document.querySelector('#verdict') && {CATALOGUES} && {SETTLED}")
    assert "tensor 4" in browser.value(VERDICT)


def test_an_alternative_is_selected_by_keyboard(browser: Browser, address: str):
    browser.visit(address)
    browser.until(f"{CATALOGUES} && {SETTLED}")
    browser.value("document.querySelector('.point[role=button]').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13)
    browser.until(f"location.search.includes('layout.tensor_parallel=') && {SETTLED}")


def test_what_a_model_is_called_is_never_markup(browser: Browser, address: str):
    browser.visit(address)
    browser.until(f"{CATALOGUES} && {SETTLED}")
    browser.fill("model", "<img src=x onerror=alert(1)>")
    browser.until(f"{VERDICT}.includes('<img')")
    assert browser.value("document.querySelector('main img') === null")
    assert browser.value("document.querySelector('[name=model]').getAttribute('aria-invalid')") == "true"
    # The browser itself reports each answer above 399.
    browser.errors = [said for said in browser.errors if "Failed to load resource" not in said]


def test_a_deployment_is_sized_and_mapped(browser: Browser, address: str):
    browser.visit(f"{address}/ui/serve")
    browser.until(f"document.querySelector('.heat td') && {SETTLED}")
    assert "tokens/s" in browser.value(VERDICT)


def test_stored_plans_are_listed_and_opened(browser: Browser, address: str):
    browser.visit(f"{address}/ui/plans")
    browser.until("document.querySelector('#list a')")
    browser.visit(browser.value("document.querySelector('#list a').href"))
    browser.until(f"document.querySelector('#question') && document.querySelector('#question').hidden && {SETTLED}")


def test_the_reference_works_without_the_outside(browser: Browser, address: str):
    browser.visit(f"{address}/docs")
    browser.until("document.querySelectorAll('.opblock').length > 5")


def test_nothing_runs_off_a_phones_side(browser: Browser, address: str):
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    browser.visit(address)
    browser.until(f"{CATALOGUES} && {SETTLED}")
    assert browser.value("document.documentElement.scrollWidth") <= 390

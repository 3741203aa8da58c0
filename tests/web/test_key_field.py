"""The API key in a real browser: asked for, kept in the tab, shown as a header and never in an address."""

from __future__ import annotations

from tests.web.browser import CATALOGUES, NEEDS_CHROMIUM, SETTLED, Browser
from tests.web.running import RunningService

pytestmark = NEEDS_CHROMIUM


def enter(page: Browser, key: str) -> None:
    page.visit("/")
    page.until(f"document.querySelector('#key') && {CATALOGUES}")
    page.value("document.querySelector('#key-box').open = true")
    page.fill("key", key, form="#key")
    page.value("window.isOld = true")
    page.click("#key button")
    page.until("!window.isOld && document.querySelector('#key')")


def test_a_wrong_key_is_answered_with_what_to_do(page: Browser):
    # A key that is shown is looked at, even where none is needed.
    enter(page, "plimsoll_0000000000000000_wrong")
    page.until_text("#verdict", "plimsoll keys create")
    assert page.value("document.querySelector('#key-box').open")
    page.forget_refusals()
    page.click("#forget-key")
    page.ask("/")


def test_a_right_key_opens_questions_and_stands_in_no_address(page: Browser, service: RunningService):
    key = service.new_key("plan", "quantize")
    enter(page, key)
    page.until(f"{CATALOGUES} && {SETTLED}")
    assert key not in page.value("location.href")
    assert page.value("document.cookie + JSON.stringify(localStorage)") == "{}"


def test_events_are_followed_with_a_key(page: Browser, service: RunningService):
    enter(page, service.new_key("quantize"))
    page.forget_refusals()
    page.visit("/ui/jobs")
    page.until(CATALOGUES)
    config = '{"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 2}'
    page.fill("model.config", config, form="#quantize")
    page.click("#quantize button")
    page.until_text("#job h2", "quantize: succeeded")
    page.forget_refusals()

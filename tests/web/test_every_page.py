"""What holds for every page in a real browser: nothing from outside, nothing that jumps, text that can be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.web.browser import DESKTOP, NEEDS_CHROMIUM, PHONE, SETTLED, Browser

pytestmark = NEEDS_CHROMIUM

LISTED = "document.querySelector('#list table')"
# Each page, and when it stands.
PAGES = {
    "/": SETTLED,
    "/ui/serve": SETTLED,
    "/ui/plans": LISTED,
    "/ui/jobs": LISTED,
    "/ui/compare": "document.querySelector('#note')?.textContent",
    "/ui/accuracy": LISTED,
    "/docs": "document.querySelectorAll('.opblock').length > 5",
}
# "Good" by https://web.dev/articles/cls.
MOST_SHIFTED = 0.1
WATCH_SHIFTS = """window.shifted = 0;
    new PerformanceObserver((list) => { for (const entry of list.getEntries()) window.shifted += entry.value; })
        .observe({type: "layout-shift", buffered: true});"""
# WCAG 2.2, 1.4.3: large text is of 24 pixels, or of 18.66 pixels and bold. A colour is blended over what it lies on;
# text of a drawing lies on the page, but for numbers on what is drawn under them, which the test of the colours has.
UNREADABLE = """(() => {
    const parsed = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
    const over = ([r, g, b, a = 1], below) => [r, g, b].map((channel, at) => channel * a + below[at] * (1 - a));
    const ground = (element) => {
        const layers = [];
        for (let each = element; each; each = each.parentElement) layers.unshift(parsed(getComputedStyle(each).backgroundColor));
        return layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
    };
    const linear = (channel) => (channel /= 255) <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4;
    const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest(".number, title, .swagger-page")) continue;
        const style = getComputedStyle(element);
        const below = ground(element);
        const colour = over(parsed(element instanceof SVGElement ? style.fill : style.color), below);
        const [dark, light] = [luminance(colour), luminance(below)].sort((a, b) => a - b);
        const size = parseFloat(style.fontSize);
        const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
        if ((light + 0.05) / (dark + 0.05) < least) found.push([walker.currentNode.data.trim().slice(0, 40), colour, below]);
    }
    return found;
})()"""  # noqa: E501  (a script's lines)


@pytest.fixture
def scheme(page: Browser, request: pytest.FixtureRequest) -> Any:
    """Show pages as those who like it light or dark have them."""
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": request.param}])
    yield request.param
    page.call("Emulation.setEmulatedMedia", features=[])


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_jumps_and_nothing_comes_from_outside(page: Browser, path: str, size: tuple[int, int]):
    page.resize(*size)
    watching = page.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH_SHIFTS)["identifier"]
    page.visit(path)
    page.until(PAGES[path])
    page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=watching)
    assert page.value("window.shifted") < MOST_SHIFTED
    assert page.value("document.documentElement.scrollWidth") <= size[0]
    asked = page.value("performance.getEntriesByType('resource').map((entry) => entry.name)")
    origin = page.value("location.origin")
    assert [address for address in asked if not address.startswith((origin, "data:"))] == []
    page.resize(*DESKTOP)


@pytest.mark.parametrize("scheme", ["light", "dark"], indirect=True)
@pytest.mark.parametrize("path", [path for path in PAGES if path != "/docs"])
def test_all_text_can_be_read(page: Browser, path: str, scheme: str):
    page.visit(path)
    page.until(PAGES[path])
    assert json.dumps(page.value(UNREADABLE)) == "[]"


def test_an_answer_that_follows_moves_little(page: Browser):
    page.ask("/")
    page.value(WATCH_SHIFTS)
    page.fill("training.sequence_length", "4096")
    page.until(f"{SETTLED} && location.search.includes('=4096')")
    page.fill("model", "meta-llama/Llama-3.1-70B")
    page.until(f"{SETTLED} && document.querySelector('#verdict').innerText.includes('70B')")
    assert page.value("window.shifted") < MOST_SHIFTED

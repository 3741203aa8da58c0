"""Measure the web pages in headless Chromium: first paint, bytes, layout shift, and how soon an answer follows typing.

    python -m benchmarks.web_pages

It starts a service of its own. Needs Chromium, and the packages of the tests.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.web.browser import CATALOGUES, SETTLED, Browser, chromium
from tests.web.running import running_service

PAGES = {"Train": "/", "Serve": "/ui/serve", "Plans": "/ui/plans", "Jobs": "/ui/jobs", "API reference": "/docs"}
VISITS = 5
ANSWERS = 10
# Each is a question that has not been asked: the answer is planned, not remembered.
FIELDS = {"/": "training.global_batch_size", "/ui/serve": "serving.concurrency"}
WATCH_SHIFTS = """window.shifted = 0;
    new PerformanceObserver((list) => { for (const entry of list.getEntries()) window.shifted += entry.value; })
        .observe({type: "layout-shift", buffered: true});"""
LOADED = """(() => {
    const entries = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
    const bytes = (wanted) => entries.filter(wanted).reduce((sum, entry) => sum + entry.transferSize, 0);
    const isFile = (entry) => entry.name.includes("/assets/") || entry.entryType === "navigation";
    return {paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null,
        files: bytes(isFile), answers: bytes((entry) => !isFile(entry)), shifted: window.shifted};
})()"""
# From the key to the request, from there to the whole answer, from there to the painted verdict; and to all parts.
# When a text was painted is told by Element Timing, https://wicg.github.io/element-timing/.
ANSWER_MILLISECONDS = """new Promise((resolve) => {
    const form = document.querySelector("#question");
    const begun = performance.now();
    performance.clearResourceTimings();
    let verdict = null;
    let parts = null;
    const end = () => {
        if (verdict === null || parts === null) return;
        const asked = performance.getEntriesByType("resource").filter((entry) => entry.name.includes("/plan/")).at(-1);
        resolve([asked.startTime - begun, asked.responseEnd - asked.startTime, verdict - asked.responseEnd, parts - begun]);
    };
    new PerformanceObserver((list, observer) => {
        const painted = list.getEntries().find((entry) => entry.identifier === "verdict" && entry.renderTime > begun);
        if (painted) { observer.disconnect(); verdict = painted.renderTime; end(); }
    }).observe({type: "element"});
    new MutationObserver((_, observer) => {
        observer.disconnect();
        document.querySelector("#verdict p").setAttribute("elementtiming", "verdict");
    }).observe(document.querySelector("#verdict"), {childList: true});
    new MutationObserver((_, observer) => {
        observer.disconnect();
        requestAnimationFrame(() => setTimeout(() => { parts = performance.now(); end(); }));
    }).observe(document.querySelector("#parts"), {childList: true});
    form.elements[%s].value = %s;
    form.elements[%s].dispatchEvent(new Event("input", {bubbles: true}));
})"""  # noqa: E501  (a script's lines)


def main() -> int:
    """Print the tables; return the exit status."""
    program = chromium()
    if program is None:
        sys.stderr.write("There is no Chromium: install Debian's chromium, or name one in CHROMIUM.\n")
        return 2
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder)
        with running_service(path) as service, Browser(program, path / "profile", service.address) as browser:
            browser.call("Network.enable")
            browser.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH_SHIFTS)
            _print_loads(browser)
            _print_answers(browser)
    return 0


def _print_loads(browser: Browser) -> None:
    print("| page | first paint, cold, median ms | slowest ms | files, KB | answers, KB | layout shift |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, path in PAGES.items():
        visits = [_load(browser, path) for _ in range(VISITS)]
        paints = [visit["paint"] for visit in visits]
        last = visits[-1]
        print(
            f"| {name} | {statistics.median(paints):.0f} | {max(paints):.0f} | {last['files'] / 1e3:.0f} "
            f"| {last['answers'] / 1e3:.0f} | {max(visit['shifted'] for visit in visits):.3f} |"
        )


def _load(browser: Browser, path: str) -> dict[str, Any]:
    browser.call("Network.clearBrowserCache")
    browser.visit(path)
    browser.until("performance.getEntriesByName('first-contentful-paint').length")
    if path in FIELDS:
        browser.until(f"{CATALOGUES} && {SETTLED}")
    else:
        browser.until("document.querySelector('#list table, .opblock')")
    loaded: dict[str, Any] = browser.value(LOADED)
    return loaded


def _print_answers(browser: Browser) -> None:
    print("\n| medians, ms | pause | service | page | **to the verdict** | slowest | to all parts |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for path, field in FIELDS.items():
        browser.ask(path)
        taken = []
        for turn in range(ANSWERS):
            script = ANSWER_MILLISECONDS % (json.dumps(field), json.dumps(str(72 + 8 * turn)), json.dumps(field))
            taken.append(browser.value(script))
            browser.until(SETTLED)
        pause, service, own, whole = (statistics.median(times) for times in zip(*taken, strict=True))
        verdicts = [sum(times[:3]) for times in taken]
        print(
            f"| {path} | {pause:.0f} | {service:.0f} | {own:.0f} | {statistics.median(verdicts):.0f} "
            f"| {max(verdicts):.0f} | {whole:.0f} |"
        )


if __name__ == "__main__":
    sys.exit(main())

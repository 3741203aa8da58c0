"""A headless Chromium, driven over its own DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

# Long enough for a machine that many share; a page that works answers in a fraction of a second.
PATIENCE_SECONDS = 60
POLL_SECONDS = 0.05
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
    "about:blank",
]


def chromium() -> str | None:
    """Return the browser: what `CHROMIUM` names, else Debian's, else none."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium")


NEEDS_CHROMIUM = [
    pytest.mark.skipif(chromium() is None, reason="no Chromium: install Debian's `chromium`, or name one in CHROMIUM"),
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.xdist_group("browser"),
]
# A question's answer stands.
SETTLED = "!document.querySelector('.waiting') && document.querySelectorAll('#parts .part').length > 4"
# The catalogues are there to choose from.
CATALOGUES = "document.querySelector('[data-models]')"
DESKTOP = (1280, 900)
# The narrowest that is common: small phones, and larger ones with larger type.
PHONE = (360, 740)
# A picture of a longer page ends here.
MOST_PICTURED_PIXELS = 6000


class Browser:
    """One page of one browser, and the errors that its console showed."""

    def __init__(self, program: str, profile: Path, site: str) -> None:
        self._site = site
        self.errors: list[str] = []
        self._numbers = itertools.count(1)
        self._program = program
        self._profile = profile
        self._socket: ClientConnection | None = None
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            command = [self._program, f"--user-data-dir={self._profile}", *FLAGS]
            process = opening.enter_context(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
            opening.callback(process.terminate)
            self._socket = opening.enter_context(connect(self._page_address(), max_size=None, proxy=None))
            for domain in ("Page", "Runtime", "Log"):
                self.call(f"{domain}.enable")
            self.resize(*DESKTOP)
            # A page that nobody looks at is told of no focus.
            self.call("Emulation.setFocusEmulationEnabled", enabled=True)
            self._opened = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _page_address(self) -> str:
        port_file = self._profile / "DevToolsActivePort"
        self._wait(lambda: port_file.exists() and "\n" in port_file.read_text())
        port = port_file.read_text().split("\n")[0]
        listed = httpx.get(f"http://127.0.0.1:{port}/json", trust_env=False).json()
        return next(str(target["webSocketDebuggerUrl"]) for target in listed if target["type"] == "page")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to one command; what the console says meanwhile is kept."""
        assert self._socket is not None
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=PATIENCE_SECONDS))
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    def value(self, script: str) -> Any:
        """Return what a script's expression is worth."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def visit(self, path: str) -> None:
        """Open a page of the site and wait until it is read.

        It is opened for the first time: a page that differs only behind the # would else stay.
        """
        self.call("Page.navigate", url="about:blank")
        # Else the page before may be taken for the one that is read.
        self.until("location.href === 'about:blank'")
        self.call("Page.navigate", url=path if path.startswith("http") else self._site + path)
        self.until("location.href !== 'about:blank' && document.readyState !== 'loading'")

    def ask(self, path: str) -> None:
        """Open a page with a question, and wait for its answer and the catalogues."""
        self.visit(path)
        self.until(f"{CATALOGUES} && {SETTLED}")

    def resize(self, width: int, height: int) -> None:
        """Take another size of screen; a narrow one is a phone's."""
        is_phone = width < DESKTOP[0]
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )

    def press(self, key: str, code: int) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def click(self, selector: str) -> None:
        """Click on what a selector finds first."""
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def text(self, selector: str) -> str:
        """Return the text of what a selector finds first; a drawing's has no lines."""
        return str(
            self.value(
                f"(found => found.innerText ?? found.textContent)(document.querySelector({json.dumps(selector)}))"
            )
        )

    def until_text(self, selector: str, part: str) -> None:
        """Wait until what a selector finds first says something."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.until(f"{found} && {found}.innerText.includes({json.dumps(part)})")

    def picture(self) -> bytes:
        """Return the whole page as PNG."""
        width, height = self.value("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, MOST_PICTURED_PIXELS), "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(shot["data"])

    def forget_refusals(self) -> None:
        """Take away what the browser itself says of each answer above 399."""
        self.value("0")
        self.errors = [said for said in self.errors if "Failed to load resource" not in said]

    def until(self, script: str) -> None:
        """Wait until a script's expression is true; fails once patience ends."""
        self._wait(lambda: self.value(f"Boolean({script})"), script)

    def fill(self, name: str, value: str, form: str = "#question") -> None:
        """Fill a field of a form as a user does."""
        field = f"document.querySelector({json.dumps(form)}).elements[{json.dumps(name)}]"
        self.value(f"{field}.value = {json.dumps(value)}")
        for kind in ("input", "change"):
            self.value(f"{field}.dispatchEvent(new Event('{kind}', {{bubbles: true}}))")

    def type_text(self, text: str) -> None:
        """Type into what has the focus."""
        for letter in text:
            self.call("Input.insertText", text=letter)

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        if method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])
        if method == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.errors.append(json.dumps(parameters["args"]))

    def _wait(self, is_there: Any, what: str = "the browser") -> None:
        ends = time.monotonic() + PATIENCE_SECONDS
        while not is_there():
            assert time.monotonic() < ends, f"waited in vain for {what}"
            time.sleep(POLL_SECONDS)

"""A headless Chromium, driven over its own DevTools protocol."""

from __future__ import annotations

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


class Browser:
    """One page of one browser, and the errors that its console showed."""

    def __init__(self, program: str, profile: Path) -> None:
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

    def visit(self, address: str) -> None:
        """Open a page."""
        self.call("Page.navigate", url=address)

    def until(self, script: str) -> None:
        """Wait until a script's expression is true; fails once patience ends."""
        self._wait(lambda: self.value(f"Boolean({script})"), script)

    def fill(self, name: str, value: str) -> None:
        """Fill a field of the question as a user does."""
        field = f"document.querySelector('#question').elements[{json.dumps(name)}]"
        self.value(f"{field}.value = {json.dumps(value)}")
        self.value(f"{field}.dispatchEvent(new Event('input', {{bubbles: true}}))")

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

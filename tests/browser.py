"""A real browser for tests: Chromium without a window, driven by its own protocol over a pair of pipes."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = (
    "chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")
SECONDS = 120  # within which whatever a test waits for must come
START_SECONDS = 180  # the first start reads 280 MB of Chromium from a disk that may be slow


class Tab:
    """One page of the browser, with everything that the browser has reported of it in `events`."""

    def __init__(self, commands: int, answers: int):
        self._commands, self._answers = commands, answers
        self._rest, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        self._seconds = START_SECONDS
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.do(f"{domain}.enable")
        self._seconds = SECONDS

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol (chromedevtools.github.io/devtools-protocol) and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next_message()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _next_message(self) -> dict[str, Any]:
        deadline = time.monotonic() + self._seconds
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0, deadline - time.monotonic()))
            part = os.read(self._answers, 2**16) if ready else b""
            assert part, "the browser does not answer"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def value(self, script: str) -> Any:
        """What an expression of JavaScript gives in the page."""
        found = self.do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Waits until an expression is true."""
        deadline = time.monotonic() + SECONDS
        while not self.value(f"Boolean({script})"):
            shown = self.value("document.body.innerText") if time.monotonic() > deadline else None
            assert shown is None, f"{script} never came; the page shows:\n{shown}\n{self.errors()}"
            time.sleep(0.03)

    def open(self, address: str) -> None:
        """Another page."""
        self.do("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete'")

    def type(self, text: str) -> None:
        """Puts text where the cursor is."""
        self.do("Input.insertText", text=text)

    def press(self, key: str, *, code: str = "", modifiers: int = 0, text: str = "") -> None:
        """A key. modifiers: 1 Alt, 2 Ctrl, 8 Shift."""
        numbers = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowRight": 39, "Backspace": 8}
        number = numbers.get(key, ord(key[0].upper()))
        common = {"key": key, "code": code or key, "modifiers": modifiers, "windowsVirtualKeyCode": number}
        self.do("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.do("Input.dispatchKeyEvent", type="keyUp", **common)

    def point_at(self, element: str) -> tuple[float, float]:
        """Moves the mouse over an element, an expression of JavaScript. Returns the place."""
        middle = "const r = e.getClientRects()[0]; return [r.x + r.width / 2, r.y + r.height / 2];"
        x, y = self.value(f"(e => {{ e.scrollIntoView({{block: 'nearest'}}); {middle} }})({element})")
        self.do("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, element: str) -> None:
        """Clicks on an element as a reader does."""
        x, y = self.point_at(element)
        for kind in ("mousePressed", "mouseReleased"):
            self.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """The window's size."""
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def picture(self) -> bytes:
        """The page as it looks, a PNG."""
        return base64.b64decode(self.do("Page.captureScreenshot")["data"])

    def errors(self) -> list[str]:
        """What the page's console has of errors, but for addresses that could not be fetched."""
        self.value("1")  # what happened before has been reported
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(parameters["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
                found.append(json.dumps(parameters["args"]))
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                entry = parameters["entry"]
                found += [] if entry["source"] == "network" else [entry["text"]]
        return found

    def addresses(self) -> list[str]:
        """Everything that the browser was asked to fetch."""
        requests = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [request["request"]["url"] for request in requests]


@contextmanager
def open_browser(profile: Path) -> Iterator[Tab]:
    """A browser with an empty profile, and its one tab."""
    to_browser, commands = os.pipe()
    answers, from_browser = os.pipe()

    def place_pipes() -> None:
        # The protocol's pipes are 3 and 4; each may stand where the other has to go.
        first, second = os.dup2(to_browser, 60), os.dup2(from_browser, 61)
        os.dup2(first, 3)
        os.dup2(second, 4)

    command = [*CHROMIUM.split(), "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        command, preexec_fn=place_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(to_browser)
    os.close(from_browser)
    tab = None
    try:
        tab = Tab(commands, answers)
        yield tab
    finally:
        with suppress(Exception):
            tab.do("Browser.close")
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(commands)
        os.close(answers)

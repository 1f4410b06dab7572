"""Headless Chromium for tests, driven over a pipe: no port, no driver program, no package.

`Browser` speaks the DevTools protocol on file descriptors 3 and 4, which the browser's option
``--remote-debugging-pipe`` reads and writes: JSON messages, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip
# Long enough for a loaded machine: it ends a test that hangs, it measures nothing.
PATIENCE = 120.0


def executable() -> str | None:
    """The path of an installed Chromium or Chrome, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One browser process with one page; use it in a ``with`` statement."""

    def __init__(self, width: int = 1280, height: int = 1000) -> None:
        # The browser's last children may still write when it has ended.
        self.profile = tempfile.TemporaryDirectory(
            prefix="refruntime-chromium-", ignore_cleanup_errors=True
        )
        self.process, self.reader, self.writer = _start(self.profile.name)
        self.buffer = b""
        self.count = 0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.page(f"{domain}.enable")
        self.page("Emulation.setDeviceMetricsOverride",
                  width=width, height=height, deviceScaleFactor=1, mobile=False)  # fmt: skip

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, EOFError):
            self.call("Browser.close")
        self.process.kill()
        self.process.wait()
        os.close(self.reader)
        os.close(self.writer)
        self.profile.cleanup()

    # -------------------------------------------------------------------------- the protocol

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; what else arrives is kept in `events`."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") != self.count:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def page(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command to the page."""
        return self.call(method, self.session, **params)

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.reader], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(self.reader, 1 << 20) if ready else b""
            if not chunk:
                raise EOFError("Chromium ended or does not answer")
            self.buffer += chunk
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    # ------------------------------------------------------------------------------ the page

    def open(self, path: Path) -> None:
        """Open a file, and wait until it has loaded."""
        self.events.clear()
        self.page("Page.navigate", url=path.resolve().as_uri())
        self.run("new Promise((done) => document.readyState === 'complete' ? done() "
                 ": addEventListener('load', () => done()))")  # fmt: skip

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page, await it, and return its value as JSON has it."""
        answer = self.page(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until the page has drawn what was asked of it."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def key(self, name: str, text: str = "", modifiers: int = 0) -> None:
        """Press and release a key, as ``KeyboardEvent.key`` names it."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
        facts = {"key": name, "modifiers": modifiers, "windowsVirtualKeyCode": codes.get(name, 0)}
        self.page("Input.dispatchKeyEvent", type="keyDown", text=text, **facts)
        self.page("Input.dispatchKeyEvent", type="keyUp", **facts)
        self.settle()

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send a mouse event at a place of the window: mouseMoved, mousePressed, ..."""
        self.page("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.settle()

    def click(self, x: float, y: float) -> None:
        """Press and release the left button."""
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1, buttons=1)

    def prefer(self, **features: str) -> None:
        """Pretend media features, as ``prefers_color_scheme="dark"``."""
        named = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.page("Emulation.setEmulatedMedia", features=named)
        self.settle()

    def screenshot(self, whole: bool = True) -> bytes:
        """Return a PNG of the page."""
        answer = self.page("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    def complaints(self) -> list[str]:
        """Return errors and warnings that the page logged or threw since it was opened."""
        self.settle()
        return [text for event in self.events if (text := _complaint(event))]

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for since it was opened."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]


def _start(profile: str) -> tuple[subprocess.Popen[bytes], int, int]:
    """Start the browser with its ends of two pipes at the numbers 3 and 4."""
    program = executable()
    if program is None:
        raise FileNotFoundError("no Chromium: install the Debian package chromium")
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    for end in (to_read, from_write):
        os.set_inheritable(end, True)

    def place() -> None:
        # Through high numbers, so that neither end is overwritten by the other.
        high = os.dup(to_read), os.dup(from_write)
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        close_fds=False, preexec_fn=place,
    )  # fmt: skip
    os.close(to_read)
    os.close(from_write)
    return process, from_read, to_write


def _complaint(event: dict[str, Any]) -> str:
    params = event.get("params", {})
    if event.get("method") == "Runtime.exceptionThrown":
        return str(params["exceptionDetails"])
    if event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
        return str([argument.get("value") for argument in params["args"]])
    if event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
        return str(params["entry"]["text"])
    return ""

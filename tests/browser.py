"""A headless Chromium, driven over a pipe by the DevTools protocol: no package and no open port is needed.

Source: https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--hide-scrollbars",
         "--disable-background-networking", "--disable-extensions", "--mute-audio")  # fmt: skip
LONGEST_S = 60
# The browser reads its descriptor 3 and writes to 4: put our pipes there, and become the browser.
LAUNCHER = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
for place, pipe in enumerate(pipes, 3):
    os.dup2(pipe, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


def installed() -> str | None:
    """The path of a Chromium; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in a browser of its own, at any size; what its scripts complain about is collected in `errors`."""

    def __init__(self, chromium: str, home: Path) -> None:
        self.errors: list[str] = []
        self._ids = itertools.count(1)
        self._buffer = b""
        self._loaded = False
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        root = ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses a sandbox to root
        launch = [sys.executable, "-c", LAUNCHER, str(theirs_in), str(theirs_out)]
        self._process = subprocess.Popen(
            [*launch, chromium, *FLAGS, *root, f"--user-data-dir={home}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        targets = self._send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        for each in (self._in, self._out):
            with contextlib.suppress(OSError):
                os.close(each)

    def open(self, path: Path, width: int, height: int, *, phone: bool = False, dark: bool = False) -> None:
        """Load a file at a size of the window, in pixels of the page."""
        scale = 2 if phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self._loaded = False
        self.call("Page.navigate", url=path.as_uri())
        until = time.monotonic() + LONGEST_S
        while not self._loaded:
            self._read(until)
        self.settle()

    def settle(self) -> None:
        """Wait until the page was drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A PNG of what the window shows, or of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def point(self, x: float, y: float) -> None:
        """Move the pointer there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the protocol to the page."""
        return self._send(method, self._session, **params)

    def _send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        until = time.monotonic() + LONGEST_S
        while True:
            answer = self._read(until)
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self, until: float) -> dict[str, Any]:
        """The next message; events are noted."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._in, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("the browser does not answer")
            self._buffer += data
        first, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning", "assert"}:
            self.errors.append(str([each.get("value") for each in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.errors.append(f"asks the network for {url}")

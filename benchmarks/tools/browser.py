"""A headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import time
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from tornado.ioloop import IOLoop
from tornado.websocket import WebSocketClientConnection, websocket_connect

STARTING_S = ANSWER_S = 60.0


class Browser:
    """One page in a Chromium of its own. faults: exceptions and errors in its console."""

    def __init__(self, program: str = "chromium") -> None:
        self._folder, self._loop, self._number = TemporaryDirectory(), IOLoop(make_current=False), 0
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0"]
        command = [program, *options, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.faults: list[str] = []

    def __enter__(self) -> Browser:
        port, deadline = Path(self._folder.name) / "DevToolsActivePort", time.monotonic() + STARTING_S
        while not (port.exists() and port.read_text().count("\n")) and time.monotonic() < deadline:
            time.sleep(0.1)
        pages = f"http://127.0.0.1:{int(port.read_text().split()[0])}/json"
        with urllib.request.urlopen(pages, timeout=ANSWER_S) as answer:
            page = next(each for each in json.load(answer) if each["type"] == "page")
        self._socket: WebSocketClientConnection = self._loop.run_sync(
            lambda: websocket_connect(page["webSocketDebuggerUrl"], max_message_size=1 << 28), timeout=STARTING_S
        )
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(ANSWER_S)
        self._loop.close()
        self._folder.cleanup()

    def ask(self, method: str, **given: Any) -> Any:
        """What a command of the protocol returns. Meanwhile faults are noticed."""
        self._number += 1
        self._loop.run_sync(
            lambda: self._socket.write_message(json.dumps({"id": self._number, "method": method, "params": given}))
        )
        while True:
            told = json.loads(self._loop.run_sync(self._socket.read_message, timeout=ANSWER_S) or "{}")
            self._notice(told)
            if told.get("id") == self._number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']}")
                return told["result"]

    def _notice(self, told: dict[str, Any]) -> None:
        given = told.get("params", {})
        match told.get("method"):
            case "Runtime.exceptionThrown":
                self.faults.append(json.dumps(given["exceptionDetails"])[:1000])
            case "Runtime.consoleAPICalled" if given["type"] in ("error", "assert"):
                self.faults.append(json.dumps(given["args"])[:1000])
            case "Log.entryAdded" if given["entry"]["level"] == "error":
                self.faults.append(f"{given['entry']['text']} ({given['entry'].get('url', '')})")

    def open(self, address: str, wait_for: str) -> float:
        """Open a page; returns the seconds until an expression in JavaScript is true."""
        began = time.monotonic()
        self.ask("Page.navigate", url=address)
        while not self.value(f"(() => {{ try {{ return Boolean({wait_for}) }} catch {{ return false }} }})()"):
            if time.monotonic() > began + STARTING_S:
                raise RuntimeError(f"{address} is not ready after {STARTING_S:g} s: {self.faults}")
            time.sleep(0.05)
        return time.monotonic() - began

    def value(self, expression: str) -> Any:
        """The value of an expression in JavaScript."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{re.sub(r' +', ' ', expression)}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def look(self, width: int, *, dark: bool = False, height: int = 900) -> None:
        """Look at the page with so many pixels, in the light or the dark scheme."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Save what the page looks like. whole: all of it, not only what fits."""
        answer = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

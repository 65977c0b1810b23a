"""A headless Chromium that a test drives: sizes, colour schemes, media, keys, and what it asks
for. It speaks the DevTools protocol over two pipes.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
DISABLED = ("gpu", "quic", "background-networking", "component-update", "sync", "dev-shm-usage")
FLAGS = [f"--disable-{name}" for name in DISABLED]
FLAGS += ["--headless", "--no-sandbox", "--no-first-run", "--remote-debugging-pipe"]
SECONDS = 600.0


class Tab:
    """A page in the browser. `requests`: every address that it asked for."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> Any:
        """A command and its answer. RuntimeError where the browser refuses it."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
        raise TimeoutError(f"{method}: no answer in {SECONDS:g} s")

    def _next(self) -> dict[str, Any]:
        """The next message; events are noted."""
        while b"\0" not in self._buffer:
            data = os.read(self._read, 1 << 20)
            if not data:
                raise RuntimeError("the browser has ended")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(message["params"]["exceptionDetails"]["text"])
        return message

    def open(
        self, path: Path | str, width: int = 1000, dark: bool = False, media: str = ""
    ) -> None:
        """Load a file or a URL at a width in pixels."""
        self.show(width, dark, media)
        self.send("Page.navigate", url=path.as_uri() if isinstance(path, Path) else path)
        end = time.monotonic() + SECONDS
        while self.value("document.readyState") != "complete" and time.monotonic() < end:
            time.sleep(0.05)

    def show(self, width: int, dark: bool = False, media: str = "") -> None:
        """Another width, colour scheme or medium for the loaded page."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives, as plain values."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key of the keyboard."""
        named = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        self.send("Input.dispatchKeyEvent", type="keyUp", **named)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """A browser with one page; it ends with the block."""
    assert CHROMIUM is not None
    theirs_read, ours_write = os.pipe()
    ours_read, theirs_write = os.pipe()
    # The protocol is on the descriptors 3 and 4 of the browser; the shell puts them there.
    command = f'exec "$@" 3<&{theirs_read} 4>&{theirs_write}'
    arguments = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        ["bash", "-c", command, "bash", *arguments],
        pass_fds=(theirs_read, theirs_write),
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_read)
    os.close(theirs_write)
    try:
        yield Tab(ours_write, ours_read)
    finally:
        os.close(ours_write)
        os.close(ours_read)
        process.terminate()
        process.wait(timeout=SECONDS)

"""Headless Chromium for tests, driven by its DevTools protocol over two pipes: no package needed.

Messages are JSON, each ended by a zero byte; the browser reads them from descriptor 3 and writes to
descriptor 4.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 300
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "Home": 36, "End": 35} | {
    f"Arrow{name}": code for name, code in (("Left", 37), ("Up", 38), ("Right", 39), ("Down", 40))
}


def find_chromium():
    """Path of the browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A browser with one page; a context manager.

    Args:
        path: The executable.
        profile: An empty folder for its profile.
    """

    def __init__(self, path, profile):
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        command = f'exec "$0" "$@" 3</dev/fd/{read} 4>/dev/fd/{write}'
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command, path, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(read, write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._number, self._rest, self._session = 0, b"", None
        self.requests, self.complaints = [], []

    def __enter__(self):
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def send(self, method, **params):
        """Result of one call of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            self._note(answer)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _receive(self):
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            came = os.read(self._read, 1 << 20)
            assert came, "the browser has gone"
            self._rest += came
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, message):
        """Keep what the page asked for and complained of."""
        method, params = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"])

    def open(self, path, *, width=1400, height=1000, scheme="light"):
        """Load a file at a window size and colour scheme."""
        self.resize(width, height)
        self.prefer(scheme)
        self.send("Page.navigate", url=path.as_uri())
        end = time.monotonic() + PATIENCE
        while self.ask("location.href + document.readyState") != f"{path.as_uri()}complete":
            assert time.monotonic() < end, "the page does not load"
            time.sleep(0.05)

    def resize(self, width, height):
        """Give the window another size."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme):
        """Prefer light or dark, as the operating system would say it."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def ask(self, expression):
        """Value of a JavaScript expression."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def point(self, selector, x, y, *, place=0):
        """Move the pointer over an element, to shares of its width and height."""
        element = f"document.querySelectorAll({json.dumps(selector)})[{place}]"
        self.ask(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        left, top, width, height = self.ask(
            f"(() => {{ const b = {element}.getBoundingClientRect();"
            " return [b.left, b.top, b.width, b.height]; })()"
        )
        spot = {"x": left + x * width, "y": top + y * height}
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **spot)
        return spot

    def click(self, selector, *, place=0):
        """Press the main button in the middle of an element."""
        spot = self.point(selector, 0.5, 0.5, place=place)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **spot)

    def press(self, key):
        """Press and release a key."""
        same = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **same, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **same)

    def picture(self, *, whole=False):
        """PNG of the window, or of the whole page."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(data["data"])

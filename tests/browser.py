"""A browser without a screen, spoken to as the WebDriver standard has it; nothing but Python's own.

`Browser.found()` says what is missing where there is none.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from types import TracebackType
from typing import Any, Self

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the standard's name of an element's number
NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60.0  # seconds that the driver may take to start
SIZE = (1500, 950)


class Browser:
    """One window. Use it in a `with` statement."""

    def __init__(self, folder: str, size: tuple[int, int] = SIZE) -> None:
        self.folder = folder
        self.size = size
        self.session = ""
        self.direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.driver = subprocess.Popen(
            ["chromedriver", "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def _start(self) -> None:
        self.address = self._address()
        browser = next(filter(None, map(shutil.which, NAMES)))
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        flags += ["--disable-quic", "--no-first-run", "--disable-background-networking"]
        flags += ["--disable-component-update", "--disable-sync"]
        flags += [f"--user-data-dir={self.folder}", f"--window-size={self.size[0]},{self.size[1]}"]
        wanted = {"goog:chromeOptions": {"binary": browser, "args": flags}}
        wanted["goog:loggingPrefs"] = {"browser": "ALL"}
        made = self._ask("POST", "session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"session/{made['sessionId']}"

    @staticmethod
    def found() -> str:
        """What is missing; nothing where a browser and its driver are installed."""
        if not any(map(shutil.which, NAMES)):
            return "no Chromium is installed"
        return "" if shutil.which("chromedriver") else "no chromedriver is installed"

    def _address(self) -> str:
        assert self.driver.stdout is not None
        end = time.monotonic() + PATIENCE
        for line in self.driver.stdout:
            if "successfully on port " in line:
                port = line.split("on port ")[1].strip().rstrip(".")
                return f"http://127.0.0.1:{port}"
            assert time.monotonic() < end
        raise AssertionError("chromedriver ended")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}/{path}", data, method=method)
        try:
            with self.direct.open(request, timeout=PATIENCE) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from error

    def open(self, address: str) -> None:
        self._ask("POST", f"{self.session}/url", {"url": address})

    def find(self, selector: str) -> str:
        body = {"using": "css selector", "value": selector}
        found: str = self._ask("POST", f"{self.session}/element", body)[ELEMENT]
        return found

    def click(self, selector: str) -> None:
        """Where a person would: the element must be seen, and not be covered."""
        self._ask("POST", f"{self.session}/element/{self.find(selector)}/click", {})

    def run(self, script: str) -> Any:
        return self._ask("POST", f"{self.session}/execute/sync", {"script": script, "args": []})

    def text(self, selector: str) -> str:
        found: str = self.run(f"return document.querySelector({selector!r}).textContent")
        return found

    def hover(self, selector: str) -> None:
        move = {"type": "pointerMove", "duration": 0, "x": 0, "y": 0}
        move["origin"] = {ELEMENT: self.find(selector)}
        mouse = {"type": "pointer", "id": "mouse", "actions": [move]}
        self._ask("POST", f"{self.session}/actions", {"actions": [mouse]})

    def complaints(self) -> list[str]:
        """What the browser has written to its console so far."""
        found = self._ask("POST", f"{self.session}/se/log", {"type": "browser"})
        return [line["message"] for line in found]

    def picture(self) -> bytes:
        return base64.b64decode(self._ask("GET", f"{self.session}/screenshot"))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        try:
            self._ask("DELETE", self.session)
        finally:
            self._end()

    def _end(self) -> None:
        self.driver.terminate()
        self.driver.wait()
        if self.driver.stdout is not None:
            self.driver.stdout.close()

"""Debian's Chromium, driven by Playwright, and pages that watch themselves.

A watched page fails its test for a request that leaves the loopback interface, an error of a
script, a message of the content security policy, and a dialog.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import cv2
import numpy as np

from sample_videos import read_frame_number
from sample_videos.textures import Image

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Route

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_LOCAL = ("127.0.0.1", "localhost", "rebound.localhost", "::1", None)
_PICTURE = """async element => {
    const size = element.videoWidth !== undefined
        ? [element.videoWidth, element.videoHeight]
        : [element.naturalWidth ?? element.width, element.naturalHeight ?? element.height];
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = size;
    canvas.getContext("2d").drawImage(element, 0, 0, ...size);
    return canvas.toDataURL("image/png");
}"""


class WatchedPage:
    """A page of a context of its own; `problems` must be empty at the end of a test."""

    def __init__(self, browser: Browser, origin: str, **context: Any) -> None:
        self.origin = origin
        self.context: BrowserContext = browser.new_context(**context)
        self.context.route("**/*", self._pass)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(60_000)  # the machine may be busy
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        self.page.on("console", self._note)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", self._dismiss)

    def open(self, path: str) -> Page:
        """Go to a path of the server, such as ``/#/storage``."""
        self.page.goto(self.origin + path)
        return self.page

    def picture(self, selector: str) -> Image:
        """The pixels that a `<video>`, `<img>` or `<canvas>` shows: height x width x 3 RGB.

        Raises `ValueError` for one that has not loaded its picture yet.
        """
        url = self.page.locator(selector).first.evaluate(_PICTURE)
        coded = base64.b64decode(cast("str", url).partition(",")[2])
        if not coded:
            raise ValueError(f"{selector} has no picture yet")
        decoded = cv2.imdecode(np.frombuffer(coded, np.uint8), cv2.IMREAD_COLOR)
        assert decoded is not None
        return np.asarray(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB), dtype=np.uint8)

    def number(self, selector: str) -> int:
        """The number in the picture that an element shows.  Raises `ValueError` without one."""
        return read_frame_number(self.picture(selector))

    def wait_for(self, script: str, argument: object = None) -> None:
        """Wait until a script is true; `Page.wait_for_function` needs a policy that allows eval."""
        wait_until(lambda: bool(self.page.evaluate(script, argument)), lambda: f"never: {script}")

    def wait_for_number(self, selector: str, number: int, seconds: float = 60) -> None:
        """Wait until an element shows the picture with this number."""

        def shown() -> int | None:
            try:
                return self.number(selector)
            except ValueError:
                return None

        wait_until(lambda: shown() == number, lambda: f"{shown()} is shown, not {number}", seconds)

    def serious(self, axe: str) -> list[str]:
        """The serious and critical findings of the script `axe`, as ``rule: element``."""
        self.page.evaluate(f"() => {{ {axe}; window.axe = axe; }}")
        found = self.page.evaluate(
            "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"
        )
        return [
            f"{one['id']}: {json.dumps(node['target'])} {node.get('failureSummary', '')}"
            for one in cast("list[dict[str, Any]]", found)
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]

    def close(self) -> None:
        self.context.close()

    def _pass(self, route: Route) -> None:
        url = urlsplit(route.request.url)
        if url.scheme in ("http", "https", "ws", "wss") and url.hostname not in _LOCAL:
            self.problems.append(f"request to {url.hostname}")
            route.abort()
        else:
            route.continue_()

    def _note(self, message: ConsoleMessage) -> None:
        # A response of 4xx is an "error" of the console, too; the page may well ask for it.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.problems.append(f"console: {message.text}")

    def _dismiss(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@contextmanager
def watched(browser: Browser, origin: str, **context: Any) -> Iterator[WatchedPage]:
    """A page that has no problems at the end; `context` has options of Playwright's contexts."""
    page = WatchedPage(browser, origin, **context)
    try:
        yield page
        assert page.problems == []
    finally:
        page.close()


def wait_until(
    holds: Callable[[], bool],
    complaint: Callable[[], str] = lambda: "it did not become true",
    seconds: float = 60,
) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, complaint()
        time.sleep(0.05)

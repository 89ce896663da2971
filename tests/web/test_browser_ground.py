"""The tools of the browser tests: pictures are read, and faults of a page are noticed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sample_videos import Encoding, Scene, write
from tests.support.web_browser import WatchedPage, wait_until, watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_PAGE = """<!doctype html><title>clip</title><video preload="auto" muted></video>
<script>{script}</script>"""
# A plain server knows no ranges, without which a video cannot be sought.
_LOAD = """fetch("clip.mp4").then(answer => answer.blob()).then(bytes => {
    document.querySelector("video").src = URL.createObjectURL(bytes);
})"""


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(Scene(frames=20, density=0), Encoding(gop=20, faststart=True), tmp_path / "clip.mp4")
    return tmp_path


@pytest.fixture
def origin(folder: Path, browser: Browser) -> Iterator[str]:
    """A plain server of `folder`; `browser` comes first, so that a test without one skips."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_QuietHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_picture_of_a_video_is_read(folder: Path, browser: Browser, origin: str) -> None:
    (folder / "index.html").write_text(_PAGE.format(script=_LOAD))
    with watched(browser, origin) as page:
        page.open("/")
        page.wait_for("document.querySelector('video').readyState >= 2")
        page.page.evaluate("document.querySelector('video').currentTime = 13.5 / 30")
        page.wait_for_number("video", 13)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("fetch('http://example.invalid/x').catch(() => 0)", "request to example.invalid"),
        ("setTimeout(() => nothing())", "script: nothing is not defined"),
        ("console.error('lost')", "console: lost"),
        ("alert('hello')", "dialog: hello"),
    ],
)
def test_fault_of_a_page_is_noticed(
    folder: Path, browser: Browser, origin: str, script: str, problem: str
) -> None:
    (folder / "index.html").write_text(_PAGE.format(script=script))
    page = WatchedPage(browser, origin)
    try:
        page.open("/")
        page.page.wait_for_timeout(1)  # lets Playwright deliver what has happened
        wait_until(lambda: bool(page.page.title()) and problem in page.problems)
    finally:
        page.close()

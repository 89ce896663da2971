"""Requests that the page and its server refuse, seen from a browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import quote

import pytest

from tests.support.web_browser import WatchedPage, watched
from tests.support.web_footage import HOSTILE
from tests.support.web_server import WebServer
from tests.web.conftest import OpenPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_FORM = """<!doctype html><title>other</title>
<script>
  window.done = fetch("{target}/api/1/holds", {{
    method: "POST", credentials: "include", mode: "no-cors",
    headers: {{"Content-Type": "text/plain"}},
    body: JSON.stringify({{name: "clips/ntsc.mp4", reason: "not mine"}})
  }}).then(answer => answer.type, error => "failed");
  window.read = fetch("{target}/api/1/videos", {{credentials: "include"}})
    .then(answer => answer.status, error => "failed");
</script>
<form method="POST" action="{target}/api/1/holds" enctype="text/plain">
  <input name='{{"name":"clips/ntsc.mp4","reason":"' value='not mine"}}'>
</form>"""


@pytest.fixture
def other_origin(tmp_path: Path, writable: WebServer) -> Iterator[str]:
    """A page of another origin that sends requests to the server with the user's cookies."""
    (tmp_path / "site").mkdir()
    page = tmp_path / "site" / "index.html"
    page.write_text(_FORM.format(target=writable.origin))

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: object, **named: object) -> None:
            super().__init__(*args, directory=str(page.parent), **named)  # type: ignore[arg-type]

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_login_by_the_printed_address(server: WebServer, browser: Browser) -> None:
    with watched(browser, server.origin) as page:
        page.open("/")
        page.page.locator("[data-test=login]").wait_for()
        page.page.goto(server.login)
        page.page.locator("[data-test=main]").wait_for()
        assert "token" not in page.page.url
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        page.page.locator("[data-test=logout]").click()
        page.page.locator("[data-test=login]").wait_for()


@pytest.mark.thorough
def test_wrong_token_is_refused(server: WebServer, browser: Browser) -> None:
    with watched(browser, server.origin) as page:
        page.open("/")
        page.page.locator("[data-test=token]").fill("x" * 43)
        page.page.locator("[data-test=login-submit]").click()
        page.page.locator("[data-test=failure]").wait_for()
        assert page.context.cookies() == []
        page.page.locator("[data-test=token]").fill(server.token)
        page.page.locator("[data-test=login-submit]").click()
        page.page.locator("[data-test=main]").wait_for()


@pytest.mark.thorough
def test_page_under_another_host_name_is_refused(server: WebServer, browser: Browser) -> None:
    """DNS rebinding: a name of another site that means this machine."""
    page = WatchedPage(browser, f"http://rebound.localhost:{server.port}")
    try:
        answer = page.page.goto(f"{page.origin}/api/1/session")
        assert answer is not None
        assert answer.status in (400, 403, 421)
        answer = page.page.goto(f"{page.origin}/")
        assert answer is not None
        assert answer.status in (400, 403, 421)
    finally:
        page.close()


@pytest.mark.thorough
def test_other_site_cannot_write_or_read(
    open_writable: OpenPage, writable: WebServer, other_origin: str
) -> None:
    watched = open_writable("/#/")
    page = watched.page
    page.goto(other_origin)
    assert page.evaluate("window.done") in ("opaque", "failed")
    assert page.evaluate("window.read") in (401, "failed")
    with suppress(Exception):
        page.evaluate("document.forms[0].submit()")
        page.wait_for_load_state()
    assert writable.json("/api/1/holds")["items"] == []
    # The browser reports each refusal to the console of the other site.
    watched.problems.clear()


@pytest.mark.thorough
def test_read_only_server_refuses_changes(open_page: OpenPage, server: WebServer) -> None:
    page = open_page("/#/storage").page
    page.locator("[data-test=holds]").wait_for()
    assert page.locator("[data-test=hold-add]").is_disabled()
    status = page.evaluate(
        """() => fetch("/api/1/holds", {method: "POST",
            headers: {"Content-Type": "application/json"},
            body: JSON.stringify({name: "clips/ntsc.mp4", reason: "x"})}).then(one => one.status)"""
    )
    assert status == 403
    with pytest.raises(HTTPError, match="403"):
        server.request("DELETE", "/api/1/videos/clips/ntsc.mp4")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path",
    [
        "/#/",
        "/#/?dir=hostile",
        f"/#/v/{quote(f'hostile/{HOSTILE}.mp4')}",
        f"/#/search?q={quote(HOSTILE)}&in=**",
        "/#/storage",
        "/#/health",
        "/#/jobs",
    ],
)
def test_hostile_names_and_labels_are_text(open_page: OpenPage, path: str) -> None:
    """A name, a tag and a label that are markup neither run nor become elements."""
    watched = open_page(path)
    page = watched.page
    page.locator("[data-test=main]").wait_for()
    page.wait_for_load_state("networkidle")
    assert page.locator("img[src=x]").count() == 0
    assert page.title() != "run"


@pytest.mark.thorough
def test_headers_of_the_page(server: WebServer, browser: Browser) -> None:
    with watched(browser, server.origin) as page:
        answer = page.page.goto(f"{server.origin}/")
        assert answer is not None
        headers = answer.all_headers()
        policy = headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"

"""Fixtures of web tests: a server in this process, and for browsers a store with numbered pictures,
its server, and Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from tests.support.web_browser import CHROMIUM, FLAGS, WatchedPage, watched
from tests.support.web_client import RunningServer, serving
from tests.support.web_footage import web_store
from tests.support.web_server import WebServer
from vfsd.api.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

OpenPage = Callable[..., "WatchedPage"]

PAGE_SOURCES = Path(__file__).parents[2] / "vfsd" / "web" / "page"


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with ``cam1/traffic.mp4``, ``cam2/gate.mkv`` and the plain file ``notes.html``."""
    folder = tmp_path_factory.mktemp("web")
    with new_store(folder / "store") as store:
        store.ingest(FOLDER / "traffic.mp4", "cam1/traffic.mp4")
        store.ingest(FOLDER / "open-gop.mkv", "cam2/gate.mkv")
        yield store


@pytest.fixture(scope="session")
def served(shared_store: Store) -> Iterator[RunningServer]:
    """A server without --write."""
    with serving(shared_store) as running:
        yield running


@pytest.fixture(scope="session")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of `tests.support.web_footage`, for all processes of this run; not to be changed
    but by its server."""
    base = tmp_path_factory.getbasetemp()
    return web_store((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "web-store")


@pytest.fixture
def own_store(made_store: Path, tmp_path: Path) -> Path:
    """A copy that the test may change."""
    return Path(shutil.copytree(made_store, tmp_path / "store"))


@pytest.fixture(scope="module")
def server(
    made_store: Path, tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> Iterator[WebServer]:
    """A server that may not write.  `browser` comes first, so that a test without one skips."""
    folder = tmp_path_factory.mktemp("served")
    copy = Path(shutil.copytree(made_store, folder / "store"))
    started = WebServer(copy, folder / "state")
    yield started
    started.close()


@pytest.fixture
def writable(own_store: Path, tmp_path: Path, browser: Browser) -> Iterator[WebServer]:
    """A server that may write into a store of its own."""
    started = WebServer(own_store, tmp_path / "state", "--write")
    yield started
    started.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium.  Without it the test is skipped, or fails if VFSD_REQUIRE_CHROMIUM=1 is set.

    One of each module: Playwright keeps an event loop in the thread, which other tests must not
    find there.
    """
    missing = _missing()
    if missing is not None:
        if os.environ.get("VFSD_REQUIRE_CHROMIUM") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture
def open_page(server: WebServer, browser: Browser) -> Iterator[OpenPage]:
    """Opens a path as the owner of the token; `options` are those of a browser context."""
    with ExitStack() as stack:
        yield partial(_opened, stack, browser, server)


@pytest.fixture
def open_writable(writable: WebServer, browser: Browser) -> Iterator[OpenPage]:
    """As `open_page`, with the server that may write."""
    with ExitStack() as stack:
        yield partial(_opened, stack, browser, writable)


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core, from the development dependencies of the page."""
    script = PAGE_SOURCES / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        if shutil.which("npm") is None:
            pytest.skip("npm is not there: apt install npm")
        subprocess.run(
            ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=PAGE_SOURCES,
            check=True,
            capture_output=True,
        )
    return script.read_text(encoding="utf-8")


def _missing() -> str | None:
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "Playwright is not there: pip install 'vfsd[test-web]'"
    return None if CHROMIUM.exists() else "Chromium is not there: apt install chromium"


def _opened(
    stack: ExitStack, browser: Browser, server: WebServer, path: str, **options: Any
) -> WatchedPage:
    opening: AbstractContextManager[WatchedPage] = watched(browser, server.origin, **options)
    page = stack.enter_context(opening)
    page.open(f"/#token={server.token}")
    page.page.locator("[data-test=main]").wait_for()
    page.open(path)
    return page

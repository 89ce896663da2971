"""The page while things change: uploads during playback, a server that is killed, and what opening
pages costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sample_videos import Encoding, Scene, write
from tests.support.web_footage import CLIP, DAY, numbers_of
from tests.support.web_server import WebServer
from tests.web.conftest import OpenPage

if TYPE_CHECKING:
    from playwright.sync_api import Page

_MAIN = "import sys; from vfsd.cli.app import main; sys.argv[0] = 'vfsd'; main()"


def logged_reads(store: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-c", _MAIN, "-s", str(store), "reads", "all", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.thorough
def test_upload_while_playing(open_writable: OpenPage, writable: WebServer, tmp_path: Path) -> None:
    """A video that is put into the library does not disturb one that plays, and plays itself."""
    name = "clips/long-gop.mp4"
    playing = open_writable(f"/#/v/{name}")
    playing.page.locator("[data-test=frame][data-exact=true]").wait_for()
    playing.page.locator("[data-test=play]").click()
    fresh = tmp_path / "fresh.mp4"
    write(Scene(frames=60, density=0, seed=9), Encoding(gop=30), fresh)
    library = open_writable("/#/?dir=clips")
    library.page.locator("[data-test=video-card]").first.wait_for()
    with library.page.expect_file_chooser() as chooser:
        library.page.locator("[data-test=upload]").click()
    chooser.value.set_files(fresh)
    library.page.locator("[data-test=video-card]", has_text="fresh.mp4").wait_for()
    playing.wait_for("document.querySelector('[data-test=video]').currentTime > 1")
    playing.page.locator("[data-test=play]").click()
    playing.page.locator("[data-test=still]").wait_for()
    frame = int(playing.page.locator("[data-test=frame]").get_attribute("data-frame") or "-1")
    playing.wait_for_number("[data-test=video]", numbers_of(name)[frame])
    assert writable.get("/v/clips/fresh.mp4") == fresh.read_bytes()
    library.open("/#/v/clips/fresh.mp4?frame=41")
    library.wait_for_number("[data-test=still]", 41)


@pytest.mark.thorough
def test_server_killed_and_back(open_writable: OpenPage, writable: WebServer) -> None:
    """The page says that the server is gone, and goes on without a new login when it is back."""
    watched = open_writable("/#/storage")
    page = watched.page
    page.locator("[data-test=space]").wait_for()
    writable.kill()
    page.locator("[data-test=nav-health]").click()
    page.locator("[data-test=failure]").first.wait_for()
    watched.problems.clear()  # of the connection that broke off
    writable.restart()
    page.locator("[data-test=retry]").first.click()
    page.locator("[data-test=verdict]").wait_for()
    page.locator("[data-test=nav-cameras]").click()
    page.locator("[data-test=camera]").first.wait_for()


@pytest.mark.thorough
def test_player_goes_on_after_the_server_was_away(
    open_writable: OpenPage, writable: WebServer
) -> None:
    name = "clips/constant-25.mp4"
    watched = open_writable(f"/#/v/{name}")
    page = watched.page
    page.locator("[data-test=frame][data-frame='0'][data-exact=true]").wait_for()
    writable.kill()
    writable.restart()
    watched.problems.clear()
    field = page.locator("[data-test=frame]")
    field.fill("77")
    field.press("Enter")
    page.locator("[data-test=frame][data-frame='77'][data-exact=true]").wait_for()
    watched.wait_for_number("[data-test=still]", numbers_of(name)[77])


def settle(page: Page, selector: str) -> None:
    page.locator(selector).first.wait_for()
    page.wait_for_load_state("networkidle")


@pytest.mark.thorough
def test_opening_pages_decodes_nothing(open_writable: OpenPage, writable: WebServer) -> None:
    """Posters come from key frames, once; a list or a timeline reads no frame after that."""
    pages = (
        ("/#/", "[data-test=video-card]"),
        ("/#/?dir=gate", "[data-test=main]"),
        (f"/#/camera/gate?day={DAY}", "[data-test=day-timeline]"),
        ("/#/storage", "[data-test=space]"),
        ("/#/jobs", "[data-test=running]"),
    )
    watched = open_writable("/#/")
    for _ in range(2):
        for path, selector in pages:
            watched.open(path)
            settle(watched.page, selector)
    before = len(logged_reads(writable.store))
    assert before == 0
    for path, selector in pages[:2]:
        watched.open(path)
        settle(watched.page, selector)
    assert len(logged_reads(writable.store)) == 0


@pytest.mark.thorough
def test_camera_that_records_now_grows_on_the_wall(
    open_writable: OpenPage, writable: WebServer, tmp_path: Path
) -> None:
    watched = open_writable("/#/cameras", timezone_id="UTC")
    picture = "[data-test=camera][data-camera=gate] img"
    watched.wait_for("selector => document.querySelector(selector)?.naturalWidth > 0", picture)
    assert watched.number(picture) // CLIP == 16
    fresh = tmp_path / "12-00-00.mp4"
    write(Scene(frames=30, density=0, seed=9), Encoding(gop=30), fresh)
    writable.request("PUT", "/v/gate/2026-10-25/12-00-00.mp4", fresh.read_bytes())
    command = ["captured", "gate/2026-10-25/12-00-00.mp4", "--from", "2026-10-25T12:00:00Z"]
    subprocess.run([sys.executable, "-c", _MAIN, "-s", str(writable.store), *command], check=True)
    watched.wait_for_number(picture, 29)  # its last frame

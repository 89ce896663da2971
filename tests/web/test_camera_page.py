"""A camera's day over four files and gaps: what is shown, a second camera, export, and zones."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.web_browser import WatchedPage, wait_until
from tests.support.web_footage import CLIP, DAY
from tests.support.web_server import WebServer
from tests.web.conftest import OpenPage

if TYPE_CHECKING:
    from playwright.sync_api import Download, Page


def open_gate(open_page: OpenPage, at: str = "10:00:00", *, second: str = "") -> WatchedPage:
    watched = open_page(
        f"/#/camera/gate?at={DAY}T{at}Z" + (f"&with={second}" if second else ""),
        timezone_id="UTC",
        viewport={"width": 1280, "height": 900},
    )
    watched.page.locator("[data-test=frame][data-exact=true]").first.wait_for()
    return watched


def set_clock(page: Page, text: str) -> None:
    field = page.locator("[data-test=clock]")
    field.fill(text)
    field.press("Enter")


def require_number(watched: WatchedPage, number: int, second: str = "") -> None:
    watched.wait_for_number(f"[data-test=still{second}]", number)
    watched.wait_for_number(f"[data-test=video{second}]", number)


def test_seek_across_files(open_page: OpenPage) -> None:
    watched = open_gate(open_page)
    require_number(watched, 11 * CLIP)
    for clock, number in (
        ("10:00:12.510", 12 * CLIP + 62),
        ("10:00:09.990", 11 * CLIP + 249),
        ("10:00:10.010", 12 * CLIP),
        ("14:00:03.970", 14 * CLIP + 99),
        ("10:01:02.100", 13 * CLIP + 52),
    ):
        set_clock(watched.page, clock)
        require_number(watched, number)


@pytest.mark.thorough
def test_steps_lead_from_file_to_file(open_page: OpenPage) -> None:
    watched = open_gate(open_page, "10:00:09.930")
    require_number(watched, 11 * CLIP + 248)
    for number in (11 * CLIP + 249, 12 * CLIP, 12 * CLIP + 1):
        watched.page.keyboard.press(".")
        require_number(watched, number)
    for number in (12 * CLIP, 11 * CLIP + 249):
        watched.page.keyboard.press(",")
        require_number(watched, number)
    set_clock(watched.page, "10:00:19.970")
    require_number(watched, 12 * CLIP + 249)
    watched.page.keyboard.press(".")  # over the gap
    require_number(watched, 13 * CLIP)


@pytest.mark.thorough
def test_plays_from_file_to_file(open_page: OpenPage) -> None:
    watched = open_gate(open_page, "10:00:09.000")
    page = watched.page
    page.locator("[data-test=play]").click()
    page.locator("[data-test=frame][data-video='gate/2026-05-01/10-00-10.mp4']").wait_for()
    page.wait_for_timeout(300)
    page.locator("[data-test=play]").click()
    named = page.locator("[data-test=frame][data-exact=true]")
    named.wait_for()
    frame = int(named.get_attribute("data-frame") or "-1")
    require_number(watched, 12 * CLIP + frame)


@pytest.mark.thorough
def test_plays_on_after_a_gap(open_page: OpenPage) -> None:
    watched = open_gate(open_page, "10:00:19.000")
    page = watched.page
    page.locator("[data-test=play]").click()
    page.locator("[data-test=frame][data-video='gate/2026-05-01/10-01-00.mp4']").wait_for()
    page.locator("[data-test=play]").click()
    assert (page.locator("[data-test=clock]").input_value()).startswith("10:01:0")


@pytest.mark.thorough
def test_gap_is_said(open_page: OpenPage) -> None:
    watched = open_gate(open_page)
    page = watched.page
    assert "1 file" not in page.locator("[data-test=kept]").inner_text()
    assert page.locator("[data-test=kept]").inner_text() == "30 s kept in 4 files, with 4 gaps"
    set_clock(page, "10:00:30")
    assert "No footage at 10:00:30" in page.locator("[data-test=no-footage]").inner_text()
    page.locator("[data-test=to-next]").click()
    require_number(watched, 13 * CLIP)


@pytest.mark.thorough
def test_second_camera_in_step(open_page: OpenPage) -> None:
    watched = open_gate(open_page, "10:00:07.020", second="yard")
    page = watched.page
    require_number(watched, 11 * CLIP + 175)
    require_number(watched, 21 * CLIP + 60, "-second")
    set_clock(page, "10:00:03")
    page.locator("[data-test=no-footage-second]").wait_for()
    set_clock(page, "10:00:12.010")
    require_number(watched, 12 * CLIP + 50)
    require_number(watched, 21 * CLIP + 210, "-second")
    # Both play, and stay together.
    page.locator("[data-test=play]").click()
    page.wait_for_timeout(1500)
    page.locator("[data-test=play]").click()
    both = [
        page.locator(f"[data-test={screen}] [data-test=frame][data-exact=true]")
        for screen in ("screen", "screen-second")
    ]
    for one in both:
        one.wait_for()
    first, other = (int(one.get_attribute("data-frame") or "-1") for one in both)
    seconds = [10 + first / 25, 5 + other / 30]
    assert abs(seconds[0] - seconds[1]) < 0.5


def select(page: Page, start: str, end: str) -> None:
    page.locator("[data-test=export-begin]").click()
    for side, text in (("to", "10:02:00"), ("from", start), ("to", end)):
        field = page.locator(f"[data-test=export-{side}]")
        field.fill(text)
        field.press("Enter")


def count_frames(file: Path) -> int:
    probe = ["ffprobe", "-v", "error", "-count_frames", "-select_streams", "v:0"]
    wanted = ["-show_entries", "stream=nb_read_frames", "-of", "csv=p=0"]
    done = subprocess.run([*probe, *wanted, str(file)], capture_output=True, text=True, check=True)
    return int(done.stdout.strip().strip(","))


@pytest.mark.thorough
def test_export_over_files(open_page: OpenPage, server: WebServer, tmp_path: Path) -> None:
    """The size is right before the download, the bytes are those of the API, and the frames those
    of the span."""
    page = open_gate(open_page).page
    select(page, "10:00:04", "10:01:03")
    parts = page.locator("[data-test=export-part]")
    parts.first.wait_for()
    shown = page.locator("[data-test=export-size]").inner_text()
    assert "1 gap left out" in shown
    page.locator("[data-test=export-size]", has_text="as one file").wait_for()
    whole = tmp_path / "whole.mp4"
    with page.expect_download() as begun:
        page.locator("[data-test=export-download]").click()
    begun.value.save_as(whole)
    path = "/v/gate@/t=2026-05-01T10:00:04.000Z-2026-05-01T10:01:03.000Z.mp4"
    assert whole.read_bytes() == server.get(path)
    assert count_frames(whole) == 150 + 250 + 75
    downloads: list[Download] = []
    page.on("download", lambda one: downloads.append(one))
    page.locator("[data-test=export-parts]").click()
    page.wait_for_timeout(1000)
    wait_until(lambda: pumped(page) and len(downloads) == 3)
    total, frames = 0, 0
    # They need not begin in the order of the parts.
    of_address = {one.url.removeprefix(server.origin): one for one in downloads}
    for at, part in enumerate(parts.all()):
        file = tmp_path / f"{at}.mp4"
        of_address[str(part.get_attribute("href"))].save_as(file)
        data = file.read_bytes()
        total += len(data)
        frames += count_frames(file)
        assert len(data) == int(part.get_attribute("data-bytes") or "-1")
        assert data == server.get(str(part.get_attribute("href")))
    assert f"({total:,} bytes)" in shown
    assert "in 3 files" in shown
    assert frames == 150 + 250 + 75


def pumped(page: Page) -> bool:
    """Let Playwright deliver events."""
    page.wait_for_timeout(50)
    return True


@pytest.mark.thorough
def test_protect_holds_the_files(open_writable: OpenPage, writable: WebServer) -> None:
    page = open_gate(open_writable).page
    select(page, "10:00:05", "10:00:12")
    page.locator("[data-test=protect]").click()
    page.locator("[data-test=protect-reason]").fill("case 17")
    page.locator("[data-test=protect-add]").click()
    page.locator("[data-test=toast]").wait_for()
    held = writable.json("/api/1/holds")["items"]
    assert [(one["name"], one["reason"]) for one in held] == [
        ("gate/2026-05-01/10-00-00.mp4", "case 17"),
        ("gate/2026-05-01/10-00-10.mp4", "case 17"),
    ]


@pytest.mark.thorough
def test_events_lead_to_their_pictures(open_page: OpenPage) -> None:
    watched = open_gate(open_page)
    event = watched.page.locator("[data-test=event]").first
    event.wait_for()
    clock = event.inner_text().split()[0]
    event.click()
    watched.page.locator("[data-test=frame][data-exact=true]").wait_for()
    assert watched.page.locator("[data-test=clock]").input_value().startswith(clock)


@pytest.mark.thorough
def test_wall_shows_the_last_pictures(open_page: OpenPage) -> None:
    watched = open_page("/#/cameras", timezone_id="UTC")
    cards = watched.page.locator("[data-test=camera]")
    cards.first.wait_for()
    assert sorted(card.get_attribute("data-camera") or "" for card in cards.all()) == [
        "gate",
        "yard",
    ]
    picture = "[data-test=camera][data-camera=yard] img"
    watched.wait_for("selector => document.querySelector(selector)?.naturalWidth > 0", picture)
    assert watched.number(picture) // CLIP == 22
    assert watched.page.locator("[data-test=age]").first.inner_text() != "nothing recorded"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("day", "words", "clock"),
    [
        ("2026-03-29", "at 02:00 the clocks go forward to 03:00", "01:30:00"),
        ("2026-10-25", "at 03:00 the clocks go back to 02:00", "02:30:00"),
    ],
)
def test_day_of_a_change_of_clocks(open_page: OpenPage, day: str, words: str, clock: str) -> None:
    watched = open_page(f"/#/camera/gate?day={day}", timezone_id="Europe/Zurich")
    page = watched.page
    page.locator("[data-test=frame][data-exact=true]").wait_for()
    assert words in page.locator("[data-test=zone-change]").inner_text()
    assert "Europe/Zurich" in page.locator("[data-test=zone]").inner_text()
    assert page.locator("[data-test=clock]").input_value().startswith(clock)
    hours = page.locator("[data-test=day-timeline-canvas]").get_attribute("aria-valuemax")
    assert float(hours or 0) == (23 if day.startswith("2026-03") else 25) * 3600


@pytest.mark.thorough
def test_calendar_shows_the_days_with_footage(open_page: OpenPage) -> None:
    watched = open_gate(open_page)
    page = watched.page
    days = page.locator("[data-test=calendar-day]")
    assert days.count() == 31
    first = page.locator("[data-day='2026-05-01']")
    watched.wait_for(
        "() => document.querySelector(\"[data-day='2026-05-01']\").ariaLabel.includes('kept,')"
    )
    assert "30 s kept" in (first.get_attribute("aria-label") or "")
    assert "nothing kept" in (
        page.locator("[data-day='2026-05-02']").get_attribute("aria-label") or ""
    )

"""The page of a video shows the frame that it names: read off the canvas."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.selection import thorough_but
from tests.support.web_footage import CLIPS, numbers_of
from tests.web.conftest import OpenPage

if TYPE_CHECKING:
    from playwright.sync_api import Page

_CLIPS = [name for name in CLIPS if name.startswith("clips/")]
_PLAYED = [name for name in _CLIPS if "hevc" not in name]


def frame_named(page: Page) -> int:
    return int(page.locator("[data-test=frame]").get_attribute("data-frame") or "-1")


def wait_exact(page: Page, frame: int) -> None:
    page.locator(f"[data-test=frame][data-frame='{frame}'][data-exact=true]").wait_for()


def seek(page: Page, frame: int) -> None:
    field = page.locator("[data-test=frame]")
    field.fill(str(frame))
    field.press("Enter")
    wait_exact(page, frame)


@pytest.mark.parametrize("name", thorough_but(["clips/edit-list.mp4"], _CLIPS))
def test_seek_shows_the_frame(open_page: OpenPage, name: str) -> None:
    numbers = numbers_of(name)
    last = len(numbers) - 1
    watched = open_page(f"/#/v/{quote(name)}")
    page = watched.page
    wait_exact(page, 0)
    for frame in (last // 2, 1, last, last // 3, last - 1, 0):
        seek(page, frame)
        watched.wait_for_number("[data-test=still]", numbers[frame])
        if name in _PLAYED:
            watched.wait_for_number("[data-test=video]", numbers[frame])


@pytest.mark.thorough
@pytest.mark.parametrize("name", _PLAYED)
def test_step_shows_the_next_frame(open_page: OpenPage, name: str) -> None:
    numbers = numbers_of(name)
    watched = open_page(f"/#/v/{quote(name)}")
    page = watched.page
    wait_exact(page, 0)
    frame = len(numbers) // 2 - 3
    seek(page, frame)
    for key, step in ((".", 1), (".", 1), (",", -1), (".", 1), (".", 1), (".", 1), (",", -1)):
        page.keyboard.press(key)
        frame += step
        wait_exact(page, frame)
        watched.wait_for_number("[data-test=video]", numbers[frame])


@pytest.mark.thorough
@pytest.mark.parametrize("name", _PLAYED)
def test_pause_shows_the_frame_that_it_names(open_page: OpenPage, name: str) -> None:
    numbers = numbers_of(name)
    watched = open_page(f"/#/v/{quote(name)}")
    page = watched.page
    wait_exact(page, 0)
    for _ in range(3):
        page.locator("[data-test=play]").click()
        page.wait_for_timeout(400)
        page.locator("[data-test=play]").click()
        page.locator("[data-test=still]").wait_for()
        frame = frame_named(page)
        watched.wait_for_number("[data-test=video]", numbers[frame])
        watched.wait_for_number("[data-test=still]", numbers[frame])
    assert frame_named(page) > 3


@pytest.mark.thorough
@pytest.mark.parametrize("name", _CLIPS)
def test_address_names_a_frame(open_page: OpenPage, name: str) -> None:
    """A link to a frame shows it, also in another session."""
    numbers = numbers_of(name)
    frame = len(numbers) - 7
    watched = open_page(f"/#/v/{quote(name)}?frame={frame}")
    wait_exact(watched.page, frame)
    watched.wait_for_number("[data-test=still]", numbers[frame])

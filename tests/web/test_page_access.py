"""Every page: nothing serious for axe, in light and dark, nothing wider than the window, and usable
by the keyboard alone."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.web_footage import DAY, HOSTILE
from tests.web.conftest import OpenPage

if TYPE_CHECKING:
    from playwright.sync_api import Page

PAGES = {
    "library": ("/#/", "[data-test=video-card]"),
    "directory": ("/#/?dir=clips", "[data-test=video-card]"),
    "video": ("/#/v/clips/constant-25.mp4?frame=40", "[data-test=frame][data-exact=true]"),
    "hostile": (f"/#/v/{quote(f'hostile/{HOSTILE}.mp4')}", "[data-test=frame][data-exact=true]"),
    "search": ("/#/search?q=car&in=**", "[data-test=main]"),
    "cameras": ("/#/cameras", "[data-test=camera]"),
    "camera": (f"/#/camera/gate?at={DAY}T10:00:05Z", "[data-test=frame][data-exact=true]"),
    "two cameras": (
        f"/#/camera/gate?at={DAY}T10:00:07Z&with=yard",
        "[data-test=screen-second] [data-test=frame]",
    ),
    "overlap": ("/#/overlap", "[data-test=overlap-search]"),
    "storage": ("/#/storage", "[data-test=space]"),
    "jobs": ("/#/jobs", "[data-test=running]"),
    "health": ("/#/health", "[data-test=verdict]"),
    "missing": ("/#/nowhere", "[data-test=empty]"),
}
WIDE = {"width": 1280, "height": 800}
NARROW = {"width": 390, "height": 844}


def settle(page: Page, selector: str) -> None:
    page.locator(selector).first.wait_for()
    page.wait_for_load_state("networkidle")


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_serious(open_page: OpenPage, axe: str, name: str, scheme: str) -> None:
    path, selector = PAGES[name]
    watched = open_page(path, viewport=WIDE, color_scheme=scheme, bypass_csp=True)
    settle(watched.page, selector)
    assert watched.serious(axe) == []


@pytest.mark.thorough
@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_window(
    open_page: OpenPage, name: str, viewport: dict[str, int]
) -> None:
    path, selector = PAGES[name]
    page = open_page(path, viewport=viewport).page
    settle(page, selector)
    wide = page.evaluate(
        """() => [...document.querySelectorAll("main *")].filter(one => {
            const box = one.getBoundingClientRect();
            if (box.width === 0 || box.right <= innerWidth + 1) return false;
            // What scrolls or is cut inside a smaller box is not too wide.
            for (let above = one.parentElement; above && above.id !== "main";
                 above = above.parentElement) {
                if (getComputedStyle(above).overflowX !== "visible") return false;
            }
            return true;
        }).map(one => `${one.tagName} ${one.className} ${one.textContent.slice(0, 40)}`)"""
    )
    assert wide == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.thorough
def test_keyboard_alone(open_page: OpenPage) -> None:
    """From the library to a video, two frames on, to the cameras and into a day; no mouse."""
    watched = open_page("/#/", viewport=WIDE)
    page = watched.page
    settle(page, "[data-test=video-card]")
    tab_to(page, "[data-test=directory], [data-test=folder]", "clips")
    page.keyboard.press("Enter")
    watched.wait_for("location.hash.includes('clips')")
    settle(page, "[data-test=video-card]")
    tab_to(page, "a[href^='#/v/']", "")
    page.keyboard.press("Enter")
    page.locator("[data-test=frame][data-exact=true]").wait_for()
    page.keyboard.press(".")
    page.keyboard.press(".")
    page.locator("[data-test=frame][data-frame='2'][data-exact=true]").wait_for()
    page.keyboard.press("?")
    page.locator("[data-test=keys]").wait_for()
    page.keyboard.press("Escape")
    page.locator("[data-test=keys]").wait_for(state="detached")
    tab_to(page, "[data-test=nav-cameras]", "")
    page.keyboard.press("Enter")
    page.locator("[data-test=wall]").wait_for()
    tab_to(page, "[data-test=camera] a", "gate")
    page.keyboard.press("Enter")
    page.locator("[data-test=day]").wait_for()


def tab_to(page: Page, selector: str, text: str) -> None:
    """Press Tab until an element with this selector and text has the focus, which must be seen."""
    for _ in range(80):
        page.keyboard.press("Tab")
        found = page.evaluate(
            """([selector, text]) => {
                const one = document.activeElement;
                if (!one?.matches(selector) || !one.textContent.includes(text)) return null;
                const style = getComputedStyle(one);
                return style.outlineStyle !== "none" || style.boxShadow !== "none";
            }""",
            [selector, text],
        )
        if found is not None:
            assert found, f"the focus on {selector} is not seen"
            return
    raise AssertionError(f"Tab does not reach {selector} with {text!r}")

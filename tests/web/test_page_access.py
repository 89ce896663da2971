"""axe-core finds nothing serious on the pages, in light and dark colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.web_footage import DAY
from tests.web.conftest import OpenPage

if TYPE_CHECKING:
    from playwright.sync_api import Page

PAGES = {
    "library": ("/#/", "[data-test=video-card]"),
    "video": ("/#/v/clips/constant-25.mp4?frame=40", "[data-test=frame][data-exact=true]"),
    "search": ("/#/search?q=car&in=**", "[data-test=main]"),
    "cameras": ("/#/cameras", "[data-test=camera]"),
    "camera": (f"/#/camera/gate?at={DAY}T10:00:05Z", "[data-test=frame][data-exact=true]"),
    "two cameras": (
        f"/#/camera/gate?at={DAY}T10:00:07Z&with=yard",
        "[data-test=screen-second] [data-test=frame]",
    ),
    "overlap": ("/#/overlap", "[data-test=overlap-search]"),
    "storage": ("/#/storage", "[data-test=space]"),
    "health": ("/#/health", "[data-test=verdict]"),
}
WIDE = {"width": 1280, "height": 800}


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
def test_search_names_unknown_labels(open_page: OpenPage) -> None:
    watched = open_page("/#/search?q=car|lorry&in=**", viewport=WIDE)
    note = watched.page.locator("[data-test=unknown-labels]")
    note.wait_for()
    assert "lorry" in note.inner_text()
    assert "There are" in note.inner_text()

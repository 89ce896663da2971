"""Boxes and tile lines lie where they belong on the picture, at three sizes of the window."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.web_browser import WatchedPage
from tests.support.web_footage import CLIPS
from tests.support.web_server import WebServer
from tests.web.conftest import OpenPage
from vfsd.api.store import Store

_NAME = "clips/constant-25.mp4"
_MAIN = "import sys; from vfsd.cli.app import main; sys.argv[0] = 'vfsd'; main()"
_SIZES = [(1280, 900), (700, 900), (390, 844)]


def shown_box(watched: WatchedPage) -> tuple[float, float, float]:
    """(left, top, scale) of the picture on the overlay, in its own pixels."""
    size = watched.page.locator("[data-test=overlay]").evaluate("one => [one.width, one.height]")
    scene = CLIPS[_NAME].scene
    width, height = int(str(scene.get("width", 320))), int(str(scene.get("height", 240)))
    scale = min(size[0] / width, size[1] / height)
    return (size[0] - width * scale) / 2, (size[1] - height * scale) / 2, scale


def is_drawn(picture: npt.NDArray[np.uint8], x: float, y: float) -> bool:
    """Whether something is drawn within two pixels of a point."""
    row, column = round(y), round(x)
    around = picture[max(row - 2, 0) : row + 3, max(column - 2, 0) : column + 3]
    return bool(around.max() > 40)


@pytest.mark.thorough
@pytest.mark.parametrize(("width", "height"), _SIZES)
def test_boxes_at_three_sizes(
    open_page: OpenPage, server: WebServer, width: int, height: int
) -> None:
    with Store.open(server.store, read_only=True) as store:
        boxes = store[_NAME].labels.query().columns()
        frame = next(
            int(one) for one in np.unique(boxes.frames) if (boxes.frames == one).sum() >= 2
        )
        wanted = [tuple(float(side) for side in box) for box in boxes.boxes[boxes.frames == frame]]
    watched = open_page(f"/#/v/{_NAME}?frame={frame}", viewport={"width": width, "height": height})
    page = watched.page
    page.locator("[data-test=frame][data-exact=true]").wait_for()
    page.wait_for_load_state("networkidle")
    picture = watched.picture("[data-test=overlay]")
    left, top, scale = shown_box(watched)
    for x1, y1, x2, y2 in wanted:
        middle_x, middle_y = (x1 + x2) / 2, (y1 + y2) / 2
        for x, y in ((x1, middle_y), (x2, middle_y), (middle_x, y2)):
            assert is_drawn(picture, left + x * scale, top + y * scale)
    # Without boxes, nothing is drawn.
    page.keyboard.press("b")
    page.wait_for_timeout(300)
    assert watched.picture("[data-test=overlay]").max() <= 40


@pytest.mark.thorough
def test_tile_lines_are_those_of_the_layout(open_page: OpenPage, server: WebServer) -> None:
    """The overlay draws each border between tiles that `layout show --json` has, and no other."""
    command = [sys.executable, "-c", _MAIN, "-s", str(server.store), "layout", "show", _NAME]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    segment = json.loads(done.stdout)["segments"][0]
    regions = [re.split("[x+]", str(tile["region"])) for tile in segment["tiles"]]
    lefts = {int(x) for _, _, x, _ in regions} - {0}
    tops = {int(y) for _, _, _, y in regions} - {0}
    watched = open_page(f"/#/v/{_NAME}?frame=3", viewport={"width": 1280, "height": 900})
    page = watched.page
    page.locator("[data-test=frame][data-exact=true]").wait_for()
    page.keyboard.press("b")  # without boxes
    page.locator("[data-test=tiles]").click()
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(300)
    picture = watched.picture("[data-test=overlay]")
    left, top, scale = shown_box(watched)
    for x in lefts:
        assert all(is_drawn(picture, left + x * scale, top + y * scale) for y in (60, 200))
    for y in tops:
        assert all(is_drawn(picture, left + x * scale, top + y * scale) for x in (80, 240))
    for x, y in ((80, 90), (240, 90), (80, 200)):
        assert not is_drawn(picture, left + x * scale, top + y * scale)

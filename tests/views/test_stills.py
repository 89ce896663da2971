"""Single frames as files."""

from __future__ import annotations

import io

import cv2
import numpy as np
import pytest

from sample_videos import CLIPS
from tests.selection import one_in
from tests.views.conftest import Shelf
from tests.views.test_players import psnr
from vfsd.views.rendered_view import TextView
from vfsd.views.view_resolver import RecentViews


@pytest.mark.parametrize("name", one_in(4, CLIPS))
def test_stills_show_the_displayed_frame(shelf: Shelf, name: str) -> None:
    video = shelf.video(name)
    for index in (0, 17, len(video) - 1):
        right = video[index].data
        array = np.load(io.BytesIO(shelf.read(name, f"frames/{index:06}.npy")))
        assert array.dtype == np.uint8
        assert np.array_equal(array, right)
        png = _picture(shelf.read(name, f"frames/{index:06}.png"))
        assert np.array_equal(png, right)
        assert psnr(_picture(shelf.read(name, f"frames/{index}.jpg")), right) > 30


def test_a_jpeg_is_made_when_its_size_is_asked_for(fresh: Shelf) -> None:
    size = fresh.size("traffic.mp4", "frames/5.jpg")
    assert size == len(fresh.read("traffic.mp4", "frames/5.jpg"))
    assert len(list(fresh.store.parts.directory.cache.rglob("*"))) > 0


def _picture(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert decoded is not None
    return np.asarray(decoded, np.uint8)[:, :, ::-1]


def test_of_very_many_only_those_looked_at_last_are_remembered() -> None:
    recent = RecentViews[int]()
    for number in range(50_000):
        recent.put(number, TextView(b""))
    assert recent.get(0) is None
    assert recent.get(49_999) is not None

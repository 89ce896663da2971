"""`VideoCapture` against OpenCV's own, and what OpenCV's tests of positions and counts check."""

from __future__ import annotations

import random
from pathlib import Path

import cv2
import numpy as np
import pytest

from sample_videos import FOLDER
from tests.compat.conftest import DRAWN, drawn
from vfsd import Store
from vfsd.compat import quality
from vfsd.compat.cv2 import VideoCapture
from vfsd.errors import UsageError

COUNTS = {"traffic.mp4": 120, "edit-list.mp4": 53, "late-start.mp4": 45, "open-gop.mkv": 90}
"""Frames of a full decode.  OpenCV reports 60 for edit-list.mp4."""


def opened(name: str) -> VideoCapture:
    capture = VideoCapture(f"cam1/{name}")
    assert capture.isOpened()
    assert capture.getBackendName() == "VFSD"
    return capture


def count(capture: VideoCapture) -> int:
    number = 0
    while capture.read()[0]:
        number += 1
    return number


# -- what OpenCV's tests check


@pytest.mark.parametrize("name", COUNTS)
def test_frame_count_is_the_number_of_frames_read(named: Path, name: str) -> None:
    capture = opened(name)
    assert (count(capture), capture.get(cv2.CAP_PROP_FRAME_COUNT)) == (COUNTS[name], COUNTS[name])


@pytest.mark.parametrize("name", COUNTS)
def test_progressive_and_random_positions(named: Path, name: str) -> None:
    capture = opened(name)
    total = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    positions = [*range(1, total, 20), total - 1]
    for position in positions + random.Random(total).sample(positions, len(positions)):
        assert capture.set(cv2.CAP_PROP_POS_FRAMES, position)
        assert capture.get(cv2.CAP_PROP_POS_FRAMES) == position


def test_seek_random_synthetic(named: Path) -> None:
    """Each of 100 seeks is followed by the frame with that number."""
    capture = opened("drawn.avi")
    pictures = [drawn(number) for number in range(DRAWN)]
    chance = random.Random(1)
    for _ in range(DRAWN):
        number = chance.randrange(DRAWN)
        assert capture.set(cv2.CAP_PROP_POS_FRAMES, number)
        assert capture.get(cv2.CAP_PROP_POS_FRAMES) == number
        _, found = capture.read()
        assert found is not None
        assert cv2.PSNR(found, pictures[number]) >= 20
        for neighbour in {max(number - 1, 0), min(number + 1, DRAWN - 1)} - {number}:
            assert cv2.PSNR(found, pictures[neighbour]) < cv2.PSNR(found, pictures[number])


def test_seeks_land_exactly_and_say_so(named: Path) -> None:
    capture = opened("traffic.mp4")
    everything = [capture.read()[1] for _ in range(120)]
    for target in (0, 1, 5, 12, 15, 20, 24, 62, 100, 119):
        assert capture.set(cv2.CAP_PROP_POS_FRAMES, target)
        if hasattr(cv2, "CAP_PROP_POS_FRAMES_IS_EXACT"):
            assert capture.get(cv2.CAP_PROP_POS_FRAMES_IS_EXACT) == 1
        is_read, found = capture.read()
        assert is_read
        np.testing.assert_array_equal(found, everything[target])


# -- against OpenCV


@pytest.mark.parametrize("name", ["traffic.mp4", "portrait.mp4", "open-gop.mkv", "drawn.avi"])
def test_pixels_are_those_of_opencv(named: Path, clips: Path, name: str) -> None:
    ours, theirs = opened(name), cv2.VideoCapture(str(clips / name))
    assert theirs.isOpened()
    for _ in range(count(opened(name))):
        (is_ours, mine), (is_theirs, other) = ours.read(), theirs.read()
        assert is_ours
        assert is_theirs
        np.testing.assert_array_equal(mine, other)
    assert ours.read() == (False, None)
    assert not theirs.read()[0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path",
    [one for one in sorted(FOLDER.iterdir()) if one.suffix in {".mp4", ".mov", ".mkv", ".avi"}],
    ids=lambda path: path.name,
)
def test_pixels_of_all_samples(store: Store, path: Path) -> None:
    """Except AV1, which OpenCV's wheel cannot decode, and VP9 of odd sizes."""
    store.ingest(path, path.name)
    ours = VideoCapture(f"vfsd://{store.path}//{path.name}")
    theirs = cv2.VideoCapture(str(path))
    read = 0
    while (found := theirs.read())[0]:
        np.testing.assert_array_equal(ours.read()[1], found[1])
        read += 1
    assert read == len(store[path.name]) or path.name == "av1.mp4"


@pytest.mark.parametrize("name", ["traffic.mp4", "portrait.mp4"])
def test_properties_are_those_of_opencv(named: Path, clips: Path, name: str) -> None:
    ours, theirs = opened(name), cv2.VideoCapture(str(clips / name))
    for one in (
        cv2.CAP_PROP_FRAME_WIDTH,
        cv2.CAP_PROP_FRAME_HEIGHT,
        cv2.CAP_PROP_FPS,
        cv2.CAP_PROP_FOURCC,
        cv2.CAP_PROP_FRAME_COUNT,
        cv2.CAP_PROP_FORMAT,
        cv2.CAP_PROP_CONVERT_RGB,
        cv2.CAP_PROP_ORIENTATION_META,
        cv2.CAP_PROP_ORIENTATION_AUTO,
        cv2.CAP_PROP_CODEC_PIXEL_FORMAT,
        cv2.CAP_PROP_BITRATE,
        cv2.CAP_PROP_SAR_NUM,
        cv2.CAP_PROP_SAR_DEN,
        cv2.CAP_PROP_POS_FRAMES,
        cv2.CAP_PROP_POS_MSEC,
    ):
        assert ours.get(one) == theirs.get(one), one
    assert ours.get(9999) == 0
    for number in (0, 7, 30):
        for capture in (ours, theirs):
            capture.set(cv2.CAP_PROP_POS_FRAMES, number)
            capture.read()
        assert ours.get(cv2.CAP_PROP_POS_MSEC) == pytest.approx(theirs.get(cv2.CAP_PROP_POS_MSEC))


def test_orientation_can_be_switched_off(named: Path, clips: Path) -> None:
    ours, theirs = opened("portrait.mp4"), cv2.VideoCapture(str(clips / "portrait.mp4"))
    for capture in (ours, theirs):
        assert capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
    assert ours.get(cv2.CAP_PROP_FRAME_WIDTH) == theirs.get(cv2.CAP_PROP_FRAME_WIDTH) == 320
    np.testing.assert_array_equal(ours.read()[1], theirs.read()[1])


@pytest.mark.parametrize("name", ["traffic.mp4", "portrait.mp4"])
def test_luma(named: Path, clips: Path, name: str) -> None:
    ours, theirs = opened(name), cv2.VideoCapture(str(clips / name))
    for capture in (ours, theirs):
        assert capture.set(cv2.CAP_PROP_CONVERT_RGB, 0)
    np.testing.assert_array_equal(ours.read()[1], theirs.read()[1])
    assert ours.get(cv2.CAP_PROP_FORMAT) == theirs.get(cv2.CAP_PROP_FORMAT)


# -- the rest of the interface


def test_positions_at_the_ends(named: Path) -> None:
    capture = opened("traffic.mp4")
    for given, position in ((-3, 0), (119, 119), (120, 120), (500, 120)):
        assert capture.set(cv2.CAP_PROP_POS_FRAMES, given)
        assert capture.get(cv2.CAP_PROP_POS_FRAMES) == position
        assert capture.read()[0] is (position < 120)
    for milliseconds, position in ((0, 0), (1000, 30), (1010, 30), (3990, 119), (4000, 120)):
        assert capture.set(cv2.CAP_PROP_POS_MSEC, milliseconds)
        assert capture.get(cv2.CAP_PROP_POS_FRAMES) == position
    assert capture.set(cv2.CAP_PROP_POS_AVI_RATIO, 0.5)
    assert capture.get(cv2.CAP_PROP_POS_FRAMES) == 60
    assert capture.get(cv2.CAP_PROP_POS_AVI_RATIO) == 0.5
    assert not capture.set(cv2.CAP_PROP_FRAME_WIDTH, 10)


def test_grab_and_retrieve(named: Path) -> None:
    capture = opened("traffic.mp4")
    everything = [capture.read()[1] for _ in range(12)]
    capture.set(cv2.CAP_PROP_POS_FRAMES, 0)
    assert capture.retrieve() == (False, None)
    for _ in range(10):
        assert capture.grab()
    for _ in range(2):
        np.testing.assert_array_equal(capture.retrieve()[1], everything[9])
    image = np.zeros((240, 320, 3), np.uint8)
    assert capture.read(image)[1] is image
    np.testing.assert_array_equal(image, everything[10])
    other = np.zeros((10, 10, 3), np.uint8)
    np.testing.assert_array_equal(capture.read(other)[1], everything[11])


def test_closed_captures(named: Path) -> None:
    for capture in (VideoCapture(), opened("traffic.mp4")):
        capture.release()
        capture.release()
        assert not capture.isOpened()
        assert capture.read() == (False, None)
        assert not capture.grab()
        assert capture.get(cv2.CAP_PROP_FRAME_COUNT) == 0
        with pytest.raises(cv2.error):
            capture.getBackendName()
        assert capture.open("cam1/traffic.mp4")
        assert capture.read()[0]


def test_exception_mode(named: Path) -> None:
    capture = VideoCapture()
    assert not capture.getExceptionMode()
    assert not capture.open("vfsd://cam1/none.mp4")
    capture.setExceptionMode(True)
    with pytest.raises(cv2.error, match=r"none\.mp4"):
        capture.open("vfsd://cam1/none.mp4")
    with pytest.raises(cv2.error):
        capture.open("none.mp4")
    capture.open("cam1/traffic.mp4")
    capture.set(cv2.CAP_PROP_POS_FRAMES, 120)
    with pytest.raises(cv2.error):
        capture.read()


def test_backends_and_parameters(named: Path) -> None:
    ours = VideoCapture("cam1/traffic.mp4", cv2.CAP_FFMPEG, [cv2.CAP_PROP_CONVERT_RGB, 0])
    assert (ours.getBackendName(), ours.read()[1].ndim) == ("VFSD", 2)  # type: ignore[union-attr]
    theirs = VideoCapture("cam1/traffic.mp4", cv2.CAP_FFMPEG, [cv2.CAP_PROP_FORMAT, -1])
    assert (theirs.getBackendName(), theirs.read()[0]) == ("FFMPEG", True)
    assert VideoCapture(filename="cam1/traffic.mp4", apiPreference=cv2.CAP_ANY).isOpened()


def test_other_files_are_opened_by_opencv(named: Path, clips: Path) -> None:
    capture = VideoCapture(str(clips / "traffic.mp4"))
    assert capture.getBackendName() == "FFMPEG"
    assert capture.get(cv2.CAP_PROP_FRAME_COUNT) == 120
    assert capture.grab()
    np.testing.assert_array_equal(capture.retrieve()[1], opened("traffic.mp4").read()[1])
    assert capture.read()[0]
    assert capture.set(cv2.CAP_PROP_POS_FRAMES, 5)


def test_quality_holds_for_captures_opened_in_its_block(named: Path) -> None:
    with quality(psnr=30):
        capture = opened("traffic.mp4")
    assert capture.read()[0]
    with pytest.raises(UsageError), quality(psnr=-1):
        pass


def test_captures_show_the_region_that_quality_names(named: Path) -> None:
    whole = opened("traffic.mp4")
    with quality(region="81x60+20+11"):
        part = opened("traffic.mp4")
        luma = VideoCapture("cam1/traffic.mp4", cv2.CAP_FFMPEG, [cv2.CAP_PROP_CONVERT_RGB, 0])
        # OpenCV would show the whole frame.
        assert not VideoCapture("cam1/traffic.mp4", cv2.CAP_IMAGES).isOpened()
        quiet = opened("portrait.mp4")
    size = [part.get(name) for name in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)]
    assert size == [81, 60]
    for capture in (whole, part, luma):
        assert capture.set(cv2.CAP_PROP_POS_FRAMES, 40)
    expected = whole.read()[1]
    assert expected is not None
    np.testing.assert_array_equal(part.read()[1], expected[11:71, 20:101])
    whole.set(cv2.CAP_PROP_CONVERT_RGB, 0)
    whole.set(cv2.CAP_PROP_POS_FRAMES, 40)
    expected = whole.read()[1]
    assert expected is not None
    np.testing.assert_array_equal(luma.read()[1], expected[11:71, 20:101])
    upright = quiet.read()[1]
    quiet.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
    assert upright is not None
    assert upright.shape == (60, 81, 3)
    turned = quiet.read()[1]
    assert turned is not None
    assert turned.shape[:2] == (
        quiet.get(cv2.CAP_PROP_FRAME_HEIGHT),
        quiet.get(cv2.CAP_PROP_FRAME_WIDTH),
    )
    with quality(region="4000x60+0+0"):
        assert not VideoCapture("cam1/traffic.mp4").isOpened()

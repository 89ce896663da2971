"""Positions, counts and times of `VideoCapture`, on the cases of OpenCV's own C++ tests.

Each function names the test of modules/videoio/test that it repeats.  The frames that a capture
reads in order are the reference for its seeks.  OpenCV's own capture passes few of these tests on
the same files: it derives frame counts from durations, and its seeks from an average frame rate.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from sample_videos import FOLDER
from tests.compat.conftest import drawn
from tests.support.selection import one_in
from vfsd import Store
from vfsd.compat.cv2 import VideoCapture
from vfsd.errors import VfsdError

Picture = npt.NDArray[Any]

FRAMES = 100
RATE = 25
WRITTEN = [
    ("avi", "MJPG"),
    ("mkv", "XVID"),
    ("avi", "XVID"),
    ("avi", "MPEG"),
    ("avi", "IYUV"),
    ("avi", "FFV1"),
    ("mkv", "MPEG"),
    ("mkv", "MJPG"),
    ("mkv", "FFV1"),
]
"""Containers and codecs that OpenCV's tests write."""
SUFFIXES = {".avi", ".flv", ".h264", ".mkv", ".mov", ".mp4", ".mpg", ".ts", ".webm"}
SAMPLES = sorted(path for path in FOLDER.iterdir() if path.suffix in SUFFIXES)
MOST_PIXELS = 50_000_000
"""Pixels of all frames of a footage file that takes a few seconds."""


def capture_of(store: Store, name: str) -> VideoCapture:
    capture = VideoCapture(f"vfsd://{store.path}//{name}")
    assert capture.getBackendName() == "VFSD"
    return capture


def everything(capture: VideoCapture) -> Iterator[Picture]:
    while (found := capture.read())[0]:
        assert found[1] is not None
        yield found[1]


def checksum(frame: Picture) -> tuple[int, tuple[int, ...]]:
    return zlib.crc32(frame.tobytes()), frame.shape


def check_seeks(capture: VideoCapture, frames: Sequence[object], targets: Sequence[int]) -> None:
    """Each of `targets` leads to the frame with the checksum in `frames`."""
    for target in targets:
        assert capture.set(cv2.CAP_PROP_POS_FRAMES, target)
        assert capture.get(cv2.CAP_PROP_POS_FRAMES) == target
        _, found = capture.read()
        assert found is not None
        assert checksum(found) == frames[target]
        assert capture.get(cv2.CAP_PROP_POS_FRAMES) == target + 1


def check_positions(capture: VideoCapture, step: int = 20, chances: int = 10) -> None:
    """Read in order, then by rising and by random positions.

    Repeats videoio_bunny.read_position, and its frame_count: the size, and the number of frames
    before and after reading.
    """
    count = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    frames = [checksum(frame) for frame in everything(capture)]
    assert len(frames) == count == capture.get(cv2.CAP_PROP_FRAME_COUNT)
    size = capture.get(cv2.CAP_PROP_FRAME_HEIGHT), capture.get(cv2.CAP_PROP_FRAME_WIDTH)
    assert {shape for _, shape in frames} == {(*size, 3)}
    assert capture.set(cv2.CAP_PROP_POS_FRAMES, 0)
    check_seeks(capture, frames, range(0, count, step))
    chance = random.Random(count)
    check_seeks(capture, frames, [chance.randrange(count) for _ in range(chances)])


# -- videoio_synthetic.write_read_position, Videoio_Video.seek_random_synthetic


@pytest.mark.parametrize(("ending", "codec"), one_in(4, WRITTEN))
@pytest.mark.parametrize("size", [(320, 240)])
def test_written_videos(
    store: Store, tmp_path: Path, ending: str, codec: str, size: tuple[int, int]
) -> None:
    check_written(store, tmp_path / f"{codec}.{ending}", codec, size)


@pytest.mark.thorough
@pytest.mark.parametrize(("ending", "codec"), WRITTEN)
@pytest.mark.parametrize("size", [(640, 480), (976, 768)])
def test_written_videos_of_upstream_sizes(
    store: Store, tmp_path: Path, ending: str, codec: str, size: tuple[int, int]
) -> None:
    check_written(store, tmp_path / f"{codec}.{ending}", codec, size)


def check_written(store: Store, path: Path, codec: str, size: tuple[int, int]) -> None:
    writer = cv2.VideoWriter(
        str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*codec), RATE, size, True
    )
    assert writer.isOpened()
    pictures = [drawn(number, size) for number in range(FRAMES)]
    for picture in pictures:
        writer.write(picture)
    writer.release()
    store.ingest(path, path.name)
    check_positions(capture_of(store, path.name), chances=FRAMES)
    for frame, picture in zip(everything(capture_of(store, path.name)), pictures, strict=True):
        assert cv2.PSNR(frame, picture) > 20


# -- videoio_bunny.read_position, frame_count, frame_timestamp


@pytest.mark.parametrize("path", one_in(3, SAMPLES), ids=lambda path: path.name)
def test_sample_videos(store: Store, path: Path) -> None:
    store.ingest(path, path.name)
    check_positions(capture_of(store, path.name))
    check_times(store, path.name)


@pytest.mark.footage
@pytest.mark.thorough
def test_footage(store: Store, footage: Path) -> None:
    checked = 0
    for path in sorted(footage.rglob("*.*")):
        if path.suffix not in SUFFIXES:
            continue
        try:
            video = store.ingest(path, path.name)
        except VfsdError:  # some are damaged on purpose
            continue
        if len(video) * video.width * video.height > MOST_PIXELS:
            continue
        check_positions(capture_of(store, path.name), step=50)
        check_times(store, path.name)
        checked += 1
    assert checked > 20


def check_times(store: Store, name: str) -> None:
    """The time after each read is that of the frame, and a seek there leads back to the frame."""
    video = store[name]
    capture = capture_of(store, name)
    times = []
    while capture.grab():
        times.append(capture.get(cv2.CAP_PROP_POS_MSEC))
        assert capture.get(cv2.CAP_PROP_POS_FRAMES) == len(times)
    assert times[0] == 0
    np.testing.assert_allclose(times, video.read(size=16).seconds * 1000, atol=1e-6)
    assert times == sorted(times)
    if not video.original.media.variable_rate:
        period = 1000 / capture.get(cv2.CAP_PROP_FPS)
        np.testing.assert_allclose(times, np.arange(len(times)) * period, atol=period)
    for number in range(0, len(times), 20):
        # Half a microsecond later, since a time in milliseconds is not exact.
        assert capture.set(cv2.CAP_PROP_POS_MSEC, times[number] + 5e-4)
        assert capture.get(cv2.CAP_PROP_POS_FRAMES) == number


# -- Videoio_Video.seek_progressive, videoio_pos_frames_exact


@pytest.mark.parametrize("name", ["traffic.mp4", "open-gop.mkv"])
def test_seek_to_each_frame(named: Path, name: str) -> None:
    """ffmpeg_seek_never_lands_past_the_target, and here never before it either."""
    capture = VideoCapture(f"cam1/{name}")
    frames = [checksum(frame) for frame in everything(capture)]
    check_seeks(capture, frames, range(len(frames)))
    backwards = range(len(frames) - 1, -1, -7)
    check_seeks(capture, frames, backwards)


def test_raw_packets_come_from_opencv(named: Path, clips: Path) -> None:
    """ffmpeg_raw_mode_seek_is_exact_only_on_key_frames, videoio_container.read, open_with_property
    and create_with_property_badarg.
    """
    raw = [cv2.CAP_PROP_FORMAT, -1]
    theirs = cv2.VideoCapture(str(clips / "traffic.mp4"), cv2.CAP_FFMPEG, raw)
    asked = VideoCapture("cam1/traffic.mp4", cv2.CAP_FFMPEG, raw)
    switched = VideoCapture("cam1/traffic.mp4")
    assert switched.set(cv2.CAP_PROP_FORMAT, -1)
    for target in (None, 5, 62, 30, 119):
        for capture in (asked, switched):
            theirs.set(cv2.CAP_PROP_POS_FRAMES, target or 0)
            if target is not None:
                assert capture.set(cv2.CAP_PROP_POS_FRAMES, target)
            assert capture.get(cv2.CAP_PROP_FORMAT) == -1
            position = capture.get(cv2.CAP_PROP_POS_FRAMES)
            assert position == theirs.get(cv2.CAP_PROP_POS_FRAMES) <= (target or 0)
            np.testing.assert_array_equal(capture.read()[1], theirs.read()[1])
    bad = [cv2.CAP_PROP_FORMAT, -2]
    assert not VideoCapture("cam1/traffic.mp4", cv2.CAP_FFMPEG, bad).isOpened()


def test_extradata(named: Path, clips: Path) -> None:
    """ffmpeg_check_extra_data."""
    captures = VideoCapture("cam1/traffic.mp4"), cv2.VideoCapture(str(clips / "traffic.mp4"))
    found = [
        capture.retrieve(flag=int(capture.get(cv2.CAP_PROP_CODEC_EXTRADATA_INDEX)))[1]
        for capture in captures
    ]
    assert found[0] is not None
    assert found[0].shape[0] == 1
    np.testing.assert_array_equal(found[0], found[1])


# -- safe_capture.frames_independency, videoio_ffmpeg.parallel, videoio_read.threads


def test_frames_are_independent(named: Path) -> None:
    capture = VideoCapture("cam1/traffic.mp4")
    frames = [capture.read()[1] for _ in range(10)]
    copies = [np.array(frame) for frame in frames]
    assert frames[0] is not None
    frames[0][:] = 0
    for frame, copy in list(zip(frames, copies, strict=True))[1:]:
        np.testing.assert_array_equal(frame, copy)
    capture.set(cv2.CAP_PROP_POS_FRAMES, 0)
    np.testing.assert_array_equal(capture.read()[1], copies[0])


def test_captures_in_parallel(named: Path) -> None:
    def frames(name: str) -> list[bytes]:
        return [frame.tobytes() for frame in everything(VideoCapture(f"cam1/{name}"))]

    names = ["traffic.mp4", "open-gop.mkv"] * 2
    with ThreadPoolExecutor(len(names)) as pool:
        found = list(pool.map(frames, names))
    assert [len(one) for one in found] == [120, 90] * 2
    assert found == [frames(name) for name in names]


@pytest.mark.parametrize("threads", [0, 1, 2, 50])
@pytest.mark.parametrize("name", ["traffic.mp4", "drawn.avi"])
def test_number_of_threads(named: Path, clips: Path, name: str, threads: int) -> None:
    """A number of threads is accepted, and changes no frame."""
    parameters = [cv2.CAP_PROP_N_THREADS, threads]
    ours = VideoCapture(f"cam1/{name}", cv2.CAP_FFMPEG, parameters)
    theirs = cv2.VideoCapture(str(clips / name), cv2.CAP_FFMPEG, parameters)
    assert ours.getBackendName() == "VFSD"
    assert ours.get(cv2.CAP_PROP_N_THREADS) == theirs.get(cv2.CAP_PROP_N_THREADS)
    assert sum(1 for _ in everything(ours)) == ours.get(cv2.CAP_PROP_FRAME_COUNT)


def test_hardware_decoding_is_optional(named: Path) -> None:
    """videocapture_acceleration.read, as far as it needs no device."""
    for kind in (cv2.VIDEO_ACCELERATION_NONE, cv2.VIDEO_ACCELERATION_ANY):
        capture = VideoCapture(
            "cam1/traffic.mp4", cv2.CAP_ANY, [cv2.CAP_PROP_HW_ACCELERATION, kind]
        )
        assert capture.getBackendName() == "VFSD"
        assert capture.get(cv2.CAP_PROP_HW_ACCELERATION) == cv2.VIDEO_ACCELERATION_NONE
    required = [cv2.CAP_PROP_HW_ACCELERATION, cv2.VIDEO_ACCELERATION_D3D11]
    assert not VideoCapture("cam1/traffic.mp4", cv2.CAP_FFMPEG, required).isOpened()


# -- Videoio.exceptions


def test_exceptions_of_closed_captures() -> None:
    for capture in (VideoCapture(), cv2.VideoCapture()):
        assert not capture.grab()
        assert not capture.retrieve()[0]
        assert not capture.set(cv2.CAP_PROP_POS_FRAMES, 1)
        assert not capture.open("missing.avi", cv2.CAP_OPENCV_MJPEG)
        capture.setExceptionMode(True)
        with pytest.raises(cv2.error):
            capture.grab()
        with pytest.raises(cv2.error):
            capture.retrieve()
        with pytest.raises(cv2.error):
            capture.set(cv2.CAP_PROP_POS_FRAMES, 1)
        with pytest.raises(cv2.error):
            capture.open("missing.avi", cv2.CAP_OPENCV_MJPEG)


def test_exception_of_a_property(named: Path, clips: Path) -> None:
    for capture in (
        VideoCapture("cam1/traffic.mp4"),
        cv2.VideoCapture(str(clips / "traffic.mp4")),
    ):
        assert not capture.set(cv2.CAP_PROP_FRAME_WIDTH, 10)
        capture.setExceptionMode(True)
        with pytest.raises(cv2.error):
            capture.set(cv2.CAP_PROP_FRAME_WIDTH, 10)


# -- VideoCaptureAPITests: mp4_orientation_default_auto, forced, switch


@pytest.mark.parametrize("when", ["never", "first", "later"])
def test_orientation(named: Path, clips: Path, when: str) -> None:
    captures = VideoCapture("cam1/portrait.mp4"), cv2.VideoCapture(str(clips / "portrait.mp4"))
    found = []
    for capture in captures:
        if when == "first":
            assert capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
        one = [*orientation(capture)]
        if when == "later":
            assert capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
            one += orientation(capture)
        found.append(one)
    assert found[0] == found[1]


def orientation(capture: VideoCapture | cv2.VideoCapture) -> list[object]:
    properties = (
        cv2.CAP_PROP_ORIENTATION_AUTO,
        cv2.CAP_PROP_ORIENTATION_META,
        cv2.CAP_PROP_FRAME_WIDTH,
        cv2.CAP_PROP_FRAME_HEIGHT,
    )
    values = [capture.get(one) for one in properties]
    frame = capture.read()[1]
    assert frame is not None
    return [*values, frame.shape, frame.tobytes()]


# -- videoio_ffmpeg_16bit.basic


@pytest.mark.parametrize("ending", ["avi", "mkv"])
def test_gray_of_16_bits(store: Store, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"gray.{ending}"
    size, deep = (64, 48), 30
    writer = cv2.VideoWriter(
        str(path),
        cv2.CAP_FFMPEG,
        cv2.VideoWriter.fourcc(*"FFV1"),
        30.0,
        size,
        [cv2.VIDEOWRITER_PROP_DEPTH, cv2.CV_16U, cv2.VIDEOWRITER_PROP_IS_COLOR, 0],
    )
    assert writer.isOpened()
    chance = np.random.default_rng(1)
    pictures = chance.integers(0, 2**16, (deep, size[1], size[0]), np.uint16)
    for picture in pictures:
        writer.write(picture)
    writer.release()
    store.ingest(path, path.name)
    capture = capture_of(store, path.name)
    assert capture.set(cv2.CAP_PROP_CONVERT_RGB, 0)
    assert capture.get(cv2.CAP_PROP_FORMAT) == cv2.CV_16UC1
    np.testing.assert_array_equal(list(everything(capture)), pictures)

"""Frames of a video in another size, imported from a file made by another program."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.pixel_array import Pixels
from vfsd.derive.tile_encoder import TileSettings
from vfsd.errors import OverBudgetError, RefusedMediaError, UsageError

CLIP = FOLDER / "traffic.mp4"
SIZE = (160, 120)


@pytest.fixture
def video(store: Store) -> Video:
    return store.ingest(CLIP, "a.mp4")


def frames(video: Video, size: tuple[int, int] = SIZE, format: str = "yuv420p") -> Pixels:
    return video.read(size=size, format=format, psnr=math.inf).data


def luma_psnr(one: Pixels, other: Pixels, height: int) -> float:
    error = np.mean((one[:, :height].astype(float) - other[:, :height]) ** 2)
    return float(10 * np.log10(255**2 / error))


def worst_psnr(one: Pixels, other: Pixels, height: int) -> float:
    """PSNR of the worst plane of the worst frame, in 4:2:0."""
    squares = (one.astype(float) - other) ** 2
    planes = np.split(squares, [height, height + height // 4], axis=1)
    worst = max(plane.mean(axis=(1, 2)).max() for plane in planes)
    return float(10 * np.log10(255**2 / worst))


def is_untouched(store: Store, video: Video) -> bool:
    with store.catalog.reading() as seen:
        recorded = set(seen.objects.sizes())
    return (
        store.catalog.renditions(video.info) == []
        and set(store.parts.objects.all_keys()) == recorded
        and not list(store.parts.directory.objects_tmp.iterdir())
    )


@pytest.mark.parametrize("format", one_in(4, ["yuv420p", "rgb24", "bgr24", "yuv444p"]))
@pytest.mark.parametrize("size", [(160, 120), (240, 180)])
def test_imported_rendition_reaches_its_reported_psnr(
    store: Store, video: Video, format: str, size: tuple[int, int]
) -> None:
    wanted = frames(video, size)
    made = video.renditions.write(frames(video, size, format), size=size, format=format)
    assert sum(len(segment.frames) for segment in made) == len(video)
    assert [segment.picture for segment in made] == [size] * len(made)
    got = video.read(size=size, format="yuv420p")
    assert 34 <= got.psnr <= worst_psnr(got.data, wanted, size[1]) + 0.01
    for segment in made:
        part = slice(segment.first_frame, segment.end_frame)
        assert luma_psnr(got.data[part], wanted[part], size[1]) >= segment.psnr - 0.01


def test_import_from_bytes_and_of_a_part(store: Store, video: Video) -> None:
    data = frames(video)[30:90]
    made = video.renditions.write(data.tobytes(), size=SIZE, span=(1, 3), format="yuv420p")
    covered = {frame for segment in made for frame in segment.frames}
    assert covered == set(range(30, 90))
    assert video.renditions.write(data, size=SIZE, span=(1, 3), format="yuv420p") == []  # it exists


def _black_frame(data: Pixels) -> Pixels:
    data[70] = 16
    return data


def _shifted(data: Pixels) -> Pixels:
    return np.roll(data, 1, axis=0)


def _gray(data: Pixels) -> Pixels:
    data[:, 120:] = 128
    return data


def _dark(data: Pixels) -> Pixels:
    data[:, :120] = np.maximum(data[:, :120], 6) - 6
    return data


@pytest.mark.parametrize(
    ("change", "what"),
    one_in(
        3,
        [
            (_black_frame, "luma of frame 70"),
            (_shifted, "luma of frame 0"),
            (_gray, "chroma of frame 0"),
            (_dark, "luma of frame 0"),
            (lambda data: data[:-1], "end before frame 119"),
            (lambda data: np.concatenate([data, data[:1]]), "more pictures than the 120"),
        ],
    ),
)
def test_other_frames_are_refused_and_leave_nothing(
    store: Store, video: Video, change: object, what: str
) -> None:
    assert callable(change)
    with pytest.raises(RefusedMediaError, match=what):
        video.renditions.write(change(frames(video)), size=SIZE, format="yuv420p")
    assert is_untouched(store, video)
    assert np.array_equal(frames(video), video.read(size=SIZE, format="yuv420p", psnr=100).data)


@pytest.mark.thorough
@pytest.mark.parametrize("is_full", [False, True])
def test_error_names_a_range_mismatch(store: Store, is_full: bool) -> None:
    pixels = store.ingest(CLIP, "a.mp4").read(frames=range(30), format="yuv420p").data
    told = "full" if is_full else "limited"
    video = store.write("b.mp4", pixels, fps=25, format="yuv420p", color_range=told)
    data = video.read(size=SIZE, format="yuv420p", psnr=math.inf).data.astype(float)
    # The output of `ffmpeg -pix_fmt` without range information.
    luma = data[:, :120]
    luma[...] = luma * 219 / 255 + 16 if is_full else (luma - 16) * 255 / 219
    written = data.round().clip(0, 255).astype(np.uint8)
    with pytest.raises(RefusedMediaError, match="luma of frame 0") as error:
        video.renditions.write(written, size=SIZE, format="yuv420p")
    assert str(error.value.hint).startswith(f"the video has {told} range")


def test_error_for_rgb_suggests_a_format(store: Store, video: Video) -> None:
    written = np.maximum(frames(video, format="rgb24"), 12) - 12
    with pytest.raises(RefusedMediaError, match="of frame 0") as error:
        video.renditions.write(written, size=SIZE)
    assert "write yuv420p" in str(error.value.hint)
    with pytest.raises(RefusedMediaError, match="luma of frame 0") as error:
        video.renditions.write(_dark(frames(video)), size=SIZE, format="yuv420p")
    assert error.value.hint is None


@pytest.mark.thorough
def test_refused_import_keeps_existing_renditions(store: Store, video: Video) -> None:
    video.renditions.make(SIZE, settings=TileSettings("fast", 45.0))
    before = store.catalog.renditions(video.info)
    with pytest.raises(RefusedMediaError, match="luma of frame 70"):
        video.renditions.write(_black_frame(frames(video)), size=SIZE, format="yuv420p")
    assert store.catalog.renditions(video.info) == before
    assert not list(store.parts.directory.objects_tmp.iterdir())


@pytest.mark.thorough
def test_existing_renditions_are_verified(store: Store, video: Video) -> None:
    video.renditions.make(SIZE)
    before = store.catalog.renditions(video.info)
    assert video.renditions.write(frames(video), size=SIZE, format="yuv420p") == []
    as_served = video.read(size=SIZE, format="yuv420p")
    assert as_served.psnr < 100
    assert video.renditions.write(as_served, size=SIZE, format="yuv420p") == []
    with pytest.raises(RefusedMediaError):
        video.renditions.write(_black_frame(frames(video)), size=SIZE, format="yuv420p")
    assert store.catalog.renditions(video.info) == before


def test_unsupported_sizes_are_refused(store: Store, video: Video) -> None:
    for size, what in (((320, 240), "original"), ((640, 480), "at most 320x240")):
        with pytest.raises(UsageError, match=what):
            video.renditions.write(np.zeros((120, size[1], size[0], 3), np.uint8), size=size)
    turned = store.ingest(FOLDER / "portrait.mp4")
    with pytest.raises(UsageError, match="rotated or mirrored"):
        turned.renditions.write(b"", size=(120, 160))
    with pytest.raises(UsageError, match=r"120x160|120 x 160"):
        video.renditions.write(np.zeros((120, 60, 80, 3), np.uint8), size=SIZE)
    assert is_untouched(store, video)


def test_import_over_budget_is_refused(store: Store, video: Video) -> None:
    video.budget.set("1000")
    with pytest.raises(OverBudgetError):
        video.renditions.write(frames(video), size=SIZE, format="yuv420p")
    assert is_untouched(store, video)

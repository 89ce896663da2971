"""Writing videos at a requested quality, and not much above it."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.selection import one_in
from tests.support.writing import is_as_before, smooth
from vfsd.api.store import Store
from vfsd.api.video import context_of
from vfsd.codecs.frames.planes import pixel_layout
from vfsd.core.pixel_array import Pixels
from vfsd.errors import BusyError, UsageError


@pytest.fixture
def footage(store: Store) -> tuple[Pixels, tuple[int, int]]:
    """Frames in YUV 4:2:0, and (width, height)."""
    media = store.ingest(FOLDER / "traffic.mp4", "source.mp4").original.media
    pixels = store["source.mp4"].read(frames=range(60), format="yuv420p").data
    return pixels, (media.width, media.height)


def worst_psnr(data: Pixels, back: Pixels, size: tuple[int, int], top: int = 255) -> float:
    """PSNR in dB of the worst plane of a frame in 4:2:0."""
    luma = size[0] * size[1]
    planes = (slice(0, luma), slice(luma, luma + luma // 4), slice(luma + luma // 4, None))
    squares = [
        np.mean((one.reshape(-1)[plane].astype(float) - other.reshape(-1)[plane]) ** 2)
        for one, other in zip(data, back, strict=True)
        for plane in planes
    ]
    return float(10 * np.log10(top**2 / max(squares)))


@pytest.mark.parametrize(
    ("codec", "ending", "psnr"),
    one_in(3, [("h264", "mp4", 36), ("h264", "mkv", 46), ("hevc", "mp4", 40), ("av1", "mkv", 36)]),
)
def test_each_plane_of_each_frame_reaches_the_psnr(
    store: Store, footage: tuple[Pixels, tuple[int, int]], codec: str, ending: str, psnr: float
) -> None:
    data, size = footage
    video = store.write(
        f"a.{ending}", data, fps=25, size=size, format="yuv420p", codec=codec, psnr=psnr
    )
    worst = worst_psnr(data, video.read(format="yuv420p").data, size)
    assert psnr <= worst < psnr + 3  # and no bytes are spent on more
    assert [int(frame) for frame in video.keyframes] == [0, 25, 50]
    times = [
        (int(pts) - video.original.first_pts) * video.original.time_base
        for pts in context_of(video).table.pts()
    ]
    assert times == pytest.approx([number / 25 for number in range(60)])


def test_psnr_of_ten_bit_frames(store: Store) -> None:
    shape = pixel_layout("yuv420p10").shape(64, 48)
    ramp = np.arange(np.prod(shape), dtype=np.uint16).reshape(shape) % 900 + 60
    data = np.stack([np.roll(ramp, 3 * number, axis=-1) for number in range(12)])
    video = store.write("a.mp4", data, fps=25, size=(64, 48), format="yuv420p10", psnr=50)
    back = video.read(format="yuv420p10").data
    assert worst_psnr(data, back, (64, 48), 1023) >= 50


def test_writer_measures_each_complete_gop(
    store: Store, footage: tuple[Pixels, tuple[int, int]]
) -> None:
    data, (width, height) = footage
    lengths = set()
    with store.writer(
        "a.mp4", width=width, height=height, fps=25, format="yuv420p", psnr=40, key_interval=10
    ) as writer:
        for number, picture in enumerate(data):
            writer.write(picture)
            try:
                with store.growing("a.mp4") as growing:
                    lengths.add(len(growing))
                    assert len(growing) <= number + 1
            except BusyError:
                pass
    assert len(lengths) > 1
    back = writer.video.read(format="yuv420p").data
    assert worst_psnr(data, back, (width, height)) >= 40


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"psnr": 40, "quality": 20}, "not both"),
        ({"psnr": 40, "lossless": True}, "no quality or PSNR"),
        ({"psnr": 40, "codec": "ffv1"}, "no quality or PSNR"),
        ({"psnr": float("inf")}, "lossless=True"),
        ({"psnr": -1}, "psnr must be"),
        ({"psnr": 90}, "frames 0 to 24 with 90 dB"),
    ],
)
def test_unreachable_psnr_is_refused_and_leaves_nothing(
    store: Store, options: dict[str, float], what: str
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (30, 48, 64, 3), np.uint8)
    with pytest.raises(UsageError) as raised:
        store.write("a.mp4", noise, fps=25, **options)  # type: ignore[arg-type]
    assert what in f"{raised.value} {raised.value.hint}"
    assert is_as_before(store, [])


def test_simple_frames_take_few_bytes(store: Store) -> None:
    data = smooth(30, 160, 96)
    rough = store.write("rough.mp4", data, fps=25, psnr=38).original.size
    fine = store.write("fine.mp4", data, fps=25, psnr=50).original.size
    assert rough < fine


FLAT = np.full((96, 128, 3), 90, np.uint8)


def noise(count: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 255, (count, *FLAT.shape)).astype(np.uint8)


def test_recording_ends_before_frames_below_the_psnr(store: Store) -> None:
    writer = store.writer("a.mp4", width=128, height=96, fps=25, psnr=60)
    for _ in range(25):
        writer.write(FLAT)
    with pytest.raises(UsageError, match="frames 25 to 49 with 60 dB") as caught:
        writer.write(noise(25))
    assert writer.frames == 25
    assert "25 frames were saved" in "".join(caught.value.__notes__)
    for again in (lambda: writer.write(FLAT), writer.close, writer.close):
        with pytest.raises(UsageError, match="frames 25 to 49 with 60 dB"):
            again()
    assert list(store) == []
    (recording,) = store.recordings()
    video = store.recover(recording)
    assert (video.name, len(video), float(video.duration)) == ("a.mp4", 25, 1.0)
    assert np.abs(video.read().data.astype(int) - FLAT).max() <= 2


def test_last_frames_below_the_psnr(store: Store) -> None:
    pictures = chain([FLAT] * 30, noise(10))
    with pytest.raises(UsageError, match="frames 25 to 39 with 60 dB"):
        store.write("a.mp4", pictures, fps=25, psnr=60)
    (recording,) = store.recordings()
    assert len(store.recover(recording)) == 25


def test_intra_only_writer_drops_frames_below_the_psnr(
    store: Store,
) -> None:
    with store.writer("a.mp4", width=128, height=96, fps=25, psnr=60, key_interval=1) as writer:
        writer.write(FLAT)
        with pytest.raises(UsageError, match="60 dB"):
            writer.write(noise(1))
        writer.write(FLAT)
    assert len(writer.video) == writer.frames == 2

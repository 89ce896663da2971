"""Scaled frames keep their display aspect ratio."""

from __future__ import annotations

import io
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.codecs.pyav import exact_fraction
from vfsd.core.frames import scaled_aspect

WIDE = Fraction(64, 45)
"""A pixel aspect ratio: 180x144 such pixels are 16:9."""
FORMS = ("mp4", "mkv", "h264", "hevc", "codec=hevc.mp4", "codec=ffv1.mkv", "codec=mjpeg.mkv")


def written(path: Path, ratio: Fraction | None) -> Path:
    pictures = np.random.default_rng(1).integers(0, 256, (5, 144, 180, 3), np.uint8)
    with Store.create(path.with_suffix(".store")) as store:
        store.write("a.mp4", pictures, fps=25, sample_aspect_ratio=ratio)
        store["a.mp4"].save(path)
    return path


def turned(path: Path) -> Path:
    """The same file with a rotation of 90 degrees."""
    data = path.read_bytes()
    lying, upright = (
        struct.pack(">9i", *(v << 16 for v in one), 1 << 30)
        for one in ((1, 0, 0, 0, 1, 0, 0, 0), (0, 1, 0, -1, 0, 0, 144, 0))
    )
    at = data.index(b"tkhd") + 44
    assert data[at : at + 36] == lying
    path.write_bytes(data[:at] + upright + data[at + 36 :])
    return path


@pytest.fixture
def video(store: Store, tmp_path: Path) -> Video:
    return store.ingest(written(tmp_path / "wide.mp4", WIDE))


def shape(video: Video, view: str) -> tuple[int, int, Fraction | None]:
    """Width, height, and the pixel aspect ratio that a player receives."""
    with video.views.open(view) as file, av.open(io.BytesIO(file.read()), "r") as container:
        stream = container.streams.video[0]
        next(container.decode(stream))
        ratio = exact_fraction(stream.sample_aspect_ratio) or exact_fraction(
            stream.codec_context.sample_aspect_ratio
        )
        return stream.width, stream.height, ratio


@pytest.mark.parametrize("form", one_in(4, FORMS))
def test_view_size_does_not_change_the_aspect_ratio(video: Video, form: str) -> None:
    joined = "," if "=" in form else "."
    assert shape(video, f"size=90x0{joined}{form}") == (90, 72, WIDE)
    assert shape(video, f"size=128x72{joined}{form}")[2] in (1, None)  # its display size
    # A region has another aspect ratio than the whole, and keeps it.
    for region, ratio in (("", Fraction(16, 9)), ("roi=90x144+0+0,", Fraction(8, 9))):
        width, height, told = shape(video, f"{region}size=64x64{joined}{form}")
        assert (width, height) == (64, 64)
        assert told is not None
        if form.endswith("mkv"):  # where the display width is an integer
            told, ratio = Fraction(round(64 * told)), Fraction(round(64 * ratio))
        assert told == ratio


def test_saved_and_raw_files_signal_the_aspect_ratio(video: Video, tmp_path: Path) -> None:
    video.save(tmp_path / "b.mp4", size=(64, 64))
    with av.open(str(tmp_path / "b.mp4")) as container:
        assert container.streams.video[0].sample_aspect_ratio == Fraction(16, 9)
    for view, told in (("full", "64:45"), ("size=64x64", "16:9"), ("size=128x72", "1:1")):
        with video.views.open(f"{view}.y4m") as file:
            assert f" A{told} ".encode() in file.readline()


def test_rotation_inverts_the_pixel_aspect(store: Store, tmp_path: Path) -> None:
    video = store.ingest(turned(written(tmp_path / "turned.mp4", WIDE)))
    assert (video.width, video.height) == (144, 180)
    assert shape(video, "size=0x90.mp4") == (72, 90, 1 / WIDE)
    assert shape(video, "size=64x64.mp4") == (64, 64, Fraction(9, 16))
    with video.views.open("full.y4m") as file:
        assert b" A45:64 " in file.readline()


def test_unknown_aspect_stays_unknown(store: Store, tmp_path: Path) -> None:
    video = store.ingest(written(tmp_path / "plain.mp4", None))
    assert shape(video, "size=64x64.h264")[2] is None
    with video.views.open("size=64x64.y4m") as file:
        assert b" A0:0 " in file.readline()


def test_rendition_keeps_the_aspect_ratio(store: Store, video: Video) -> None:
    video.renditions.make((90, 144))
    stored = store.catalog.physicals(video.info)[-1].media
    assert (stored.width, stored.sample_aspect_ratio) == (90, 2 * WIDE)
    video.renditions.write(video.read(size=(60, 72)).data, size=(60, 72))
    stored = store.catalog.physicals(video.info)[-1].media
    assert (stored.width, stored.sample_aspect_ratio) == (60, WIDE * 3 / 2)


@pytest.mark.parametrize("before", [(1, 16384), (16384, 1), (853, 479), (16383, 16381)])
def test_aspect_beyond_16_bits_is_approximated(before: tuple[int, int]) -> None:
    found = scaled_aspect(Fraction(1001, 997), before, (16384, 2))
    exact = Fraction(1001, 997) * Fraction(before[0] * 2, before[1] * 16384)
    assert max(found.numerator, found.denominator) < 1 << 16
    assert found == min(max(exact, Fraction(1, 65535)), Fraction(65535)) or (
        abs(found / exact - 1) < Fraction(1, 100)
    )

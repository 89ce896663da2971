"""Colour tags that only the container has, not the packets."""

from __future__ import annotations

import io
import math
from pathlib import Path

import av
import numpy as np
import pytest

from tests.read.test_color import decoded, least_psnr, truth
from tests.support.color_clips import (
    FULL_709,
    LIMITED_709,
    UNTOLD,
    Coding,
    coded,
    encoded,
    part,
    shown,
)
from vfsd.api.store import Store
from vfsd.derive.tile_encoder import TileSettings

SIZE = (64, 48)


def told_by_container(path: Path, coding: Coding) -> Path:
    """FFV1 in Matroska: the codec cannot signal colors itself."""
    frames = [coded(pixels, coding) for pixels in truth(1)]
    told = {"color_range": 2 if coding.range == "pc" else 1, "colorspace": coding.number}
    return encoded(path, "ffv1", frames, told=told)


def packets_that_do_not_tell(path: Path) -> Path:
    """H.264 in limited range and BT.709, signalled by the container only."""
    frames = [coded(pixels, LIMITED_709) for pixels in truth(1)]
    options = {"crf": "8", "g": "10", "x264-params": "colormatrix=undef"}
    return encoded(path, "libx264", frames, options, told={"color_range": 1, "colorspace": 1})


@pytest.mark.parametrize("coding", [LIMITED_709, FULL_709], ids=["limited", "full"])
def test_reads_views_and_tiles_use_the_container_tags(
    store: Store, tmp_path: Path, coding: Coding
) -> None:
    path = told_by_container(tmp_path / "a.mkv", coding)
    video = store.ingest(path)
    video.budget.set("none")
    before = video.read(psnr=math.inf).data
    assert np.array_equal(before, decoded(path))
    assert least_psnr(before, truth(1)) > 43
    assert np.array_equal(video.read(frames=[15], psnr=math.inf).data[0], before[15])
    for codec in ("hevc", "ffv1"):
        video.save(tmp_path / f"{codec}.mkv", codec=codec, span=(0, 0.8))
        assert least_psnr(decoded(tmp_path / f"{codec}.mkv"), before) > 39
    video.tiles.retile("uniform:1x2", settings=TileSettings("lossless"))
    assert np.array_equal(video.read().data, before)
    small = video.read(size=SIZE, psnr=math.inf).data
    video.renditions.make(SIZE)
    assert least_psnr(video.read(size=SIZE).data, small) > 37


def test_copied_packets_keep_the_container_tags(store: Store, tmp_path: Path) -> None:
    path = packets_that_do_not_tell(tmp_path / "a.mkv")
    video = store.ingest(path)
    assert (video.original.media.color_range, video.original.media.color_space) == (
        "limited",
        "bt709",
    )
    assert least_psnr(video.read().data, truth(1)) > 41
    for view, start in (
        ("full.mkv", 0),
        ("full.mp4", 0),
        ("t=0.4-0.8.mp4", 10),
        ("t=0.2-0.8.mkv", 5),
    ):
        with video.views.open(view) as file:
            found = decoded(io.BytesIO(file.read()))
        assert least_psnr(found, truth(1)[start:]) > 38, view
    with video.views.open("full.mp4") as file:
        (tmp_path / "b.mp4").write_bytes(file.read())
    again = store.ingest(tmp_path / "b.mp4")
    assert again.original.media.color_space == "bt709"
    assert np.array_equal(again.read().data, video.read().data)


def test_views_of_untagged_sources_are_untagged(store: Store, tmp_path: Path) -> None:
    video = store.ingest(part(tmp_path / "a.mp4", UNTOLD, list(truth(1))))
    with video.views.open("full.mp4") as file:
        assert b"colr" not in file.read()


def test_written_color_tags_are_read_back(store: Store) -> None:
    planes = np.stack([coded(shown(n), FULL_709).to_ndarray() for n in range(8)])
    video = store.write(
        "a.mkv",
        planes,
        fps=25,
        size=(128, 96),
        format="yuv420p",
        codec="ffv1",
        color_range="full",
        color_space="bt709",
    )
    assert np.array_equal(video.read(format="yuv420p").data, planes)
    assert least_psnr(video.read().data, truth(1)[:8]) > 43


def test_gray_keeps_its_range(store: Store, tmp_path: Path) -> None:
    levels = np.tile(np.arange(0, 256, 2, dtype=np.uint8), (96, 1))
    rolled = [np.roll(levels, number, axis=1) for number in range(5)]
    frames = [av.VideoFrame.from_ndarray(one, format="gray") for one in rolled]
    path = encoded(tmp_path / "gray.mkv", "ffv1", frames)
    video = store.ingest(path)
    wanted = video.read().data
    assert np.array_equal(wanted, decoded(path))
    for codec in ("hevc", "ffv1", "mjpeg"):
        video.save(tmp_path / f"{codec}.mkv", codec=codec, size=(96, 96))
        scaled = video.read(size=(96, 96)).data
        assert least_psnr(decoded(tmp_path / f"{codec}.mkv"), scaled) > 38, codec
    with video.views.open("pix=yuv420p.y4m") as file:
        assert b"XCOLORRANGE=FULL" in file.read(200)

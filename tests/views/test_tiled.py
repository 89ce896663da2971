"""Views of a video that has tiles."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.views.conftest import Shelf, decoded
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.read.pack_pool import PackPool
from vfsd.tiling import Rect

REGION = Rect(20, 20, 60, 60)
RAW = "roi=40x40+20+20,pix=rgb24.raw"


def pixels(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.frombuffer(data, np.uint8).reshape(-1, 40, 40, 3)


def test_a_region_is_read_from_tiles(fresh: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    before = pixels(fresh.read("traffic.mp4", RAW))
    video = fresh.video("traffic.mp4")
    video.tiles.retile("uniform:3x4")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the original is decoded")

    with monkeypatch.context() as patch:
        patch.setattr(FrameDecoder, "stream", refuse)
        patch.setattr(FrameDecoder, "decode", refuse)
        tiled = pixels(fresh.read("traffic.mp4", RAW))
        encoded = fresh.read("traffic.mp4", "roi=40x40+20+20.mp4")
    assert np.array_equal(tiled, video.read(region=REGION).data)
    assert tiled.shape == before.shape
    assert np.abs(tiled.astype(int) - before).mean() < 2
    assert len(encoded) == fresh.size("traffic.mp4", "roi=40x40+20+20.mp4")


def test_an_open_view_goes_on_with_what_it_was_opened_with(fresh: Shelf) -> None:
    file = fresh.open("traffic.mp4", RAW)
    exact = pixels(fresh.read("traffic.mp4", RAW))
    fresh.video("traffic.mp4").tiles.retile("uniform:3x4")
    data = bytearray(file.size)
    at = 0
    while count := file.readinto(memoryview(data)[at : at + 5000], at):
        at += count
    file.close()
    assert np.array_equal(pixels(bytes(data)), exact)


def test_a_view_goes_on_without_tiles_that_are_gone(
    fresh: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exact = pixels(fresh.read("traffic.mp4", RAW))
    fresh.video("traffic.mp4").tiles.retile("uniform:3x4")

    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError("no such pack")

    monkeypatch.setattr(PackPool, "pictures", gone)
    assert np.array_equal(pixels(fresh.read("traffic.mp4", RAW)), exact)
    assert "not from tiles" in caplog.text


def test_views_in_its_size_are_made_from_a_rendition(
    fresh: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = fresh.video("traffic.mp4")
    video.renditions.make((160, 120))
    names = ("size=160x120,pix=rgb24.raw", "size=160x120.mp4")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the original is decoded")

    with monkeypatch.context() as patch:
        patch.setattr(FrameDecoder, "stream", refuse)
        patch.setattr(FrameDecoder, "decode", refuse)
        raw = fresh.read("traffic.mp4", names[0])
        encoded = fresh.read("traffic.mp4", names[1])
    data = np.frombuffer(raw, np.uint8).reshape(-1, 120, 160, 3)
    assert np.array_equal(data, video.read(size=(160, 120)).data)
    assert len(encoded) == fresh.size("traffic.mp4", names[1])


def test_a_view_takes_tiles_only_if_they_are_as_good_as_it_asks_for(fresh: Shelf) -> None:
    exact = pixels(fresh.read("traffic.mp4", RAW))
    video = fresh.video("traffic.mp4")
    video.tiles.retile("uniform:3x4")
    tiled = pixels(fresh.read("traffic.mp4", RAW))
    assert not np.array_equal(tiled, exact)
    for psnr, wanted in (("inf", exact), ("99", exact), ("25", tiled)):
        asked = RAW.replace("pix", f"psnr={psnr},pix")
        assert np.array_equal(pixels(fresh.read("traffic.mp4", asked)), wanted)
        told = json.loads(fresh.read("traffic.mp4", f"explain/{asked}.json"))
        assert {source["source"] for source in told["sources"]} == {
            "tiles" if wanted is tiled else "original"
        }


def test_encodes_of_sources_of_other_quality_are_other_files(fresh: Shelf) -> None:
    fresh.video("traffic.mp4").tiles.retile("uniform:3x4")
    names = ("roi=40x40+20+20.mp4", "roi=40x40+20+20,psnr=inf.mp4", "roi=40x40+20+20,psnr=99.mp4")
    good_enough, original, none = (fresh.read("traffic.mp4", name) for name in names)
    assert len(good_enough) == len(original)
    assert good_enough != original
    assert [p.to_ndarray().tobytes() for p in decoded(none)] == [
        p.to_ndarray().tobytes() for p in decoded(original)
    ]

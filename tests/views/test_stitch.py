"""Stitched views: equal to the tiles bit for bit, without decoding or encoding.

Views of a video that has tiles.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.composed_tiles import Composed
from tests.support.hevc_decoders import Planes, are_equal, cut, file_by_libde265, samples
from tests.support.selection import one_in
from tests.support.stores import new_store
from tests.views.conftest import Shelf, decoded
from tests.views.test_players import times
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.bitstreams import nal
from vfsd.codecs.cells.cell_decoders import StreamCellDecoder
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.stitching.hevc_tiles import STITCHABLE
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.errors import IntegrityError
from vfsd.read.pack_pool import PackPool
from vfsd.tiling import Rect, TileLayout
from vfsd.views import Views, stitch, transcode
from vfsd.views.view_resolver import ViewResolver

LAYOUTS = (
    # For all sample videos that are tiled here.  Their common inner edges: 64, 192; 128.
    ((64, 192), (128,)),
    ((64, 128, 192, 256), (64, 128)),
    ((64, 192), (64, 128)),
)
INNER = Rect(64, 0, 192, 128)
CLIPS = ("traffic.mp4", "variable-rate.mkv", "variable-rate.mp4", "odd-size.webm")


def tile(video: Video, codec: str = STITCHABLE) -> None:
    """Make a different layout in each segment."""
    media = video.original.media
    planned = [
        PlannedSegment(
            frames, TileLayout.cut_at(media.width, media.height, *LAYOUTS[number % len(LAYOUTS)])
        )
        for number, frames in enumerate(video.tiles.sequences(None, 0.5))
    ]
    video.tiles.retile(planned, settings=TileSettings(codec))


@pytest.fixture(scope="module")
def tiled(tmp_path_factory: pytest.TempPathFactory, kvazaar: None) -> Iterator[Shelf]:
    with new_store(tmp_path_factory.mktemp("stitched") / "store") as store:
        for name in CLIPS:
            tile(store.ingest(FOLDER / name, name))
        turned = store.ingest(FOLDER / "portrait.mp4", "portrait.mp4")
        turned.tiles.retile("192+128x128+112", settings=TileSettings(STITCHABLE))
        views = Views(store.parts, store.tools)
        yield Shelf(store, views)
        views.close()


@pytest.fixture
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make any decoding or encoding an error."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something is decoded or encoded")

    for owner, name in (
        (FrameDecoder, "stream"),
        (FrameDecoder, "decode"),
        (StreamCellDecoder, "decode"),
        (transcode, "encode_pictures"),
        (transcode, "parameter_sets"),
    ):
        monkeypatch.setattr(owner, name, refuse)


def composed(shelf: Shelf, name: str, area: Rect, frames: range) -> list[Planes]:
    """The pixels of `area` (of the stored frame) from separately decoded tiles."""
    pictures = Composed(shelf.store, shelf.video(name)).pictures
    return [cut(samples(pictures[frame]), area) for frame in frames]


def planes(data: bytes) -> list[Planes]:
    return [samples(frame) for frame in decoded(data)]


@pytest.mark.usefixtures("nothing_else")
@pytest.mark.parametrize("name", one_in(4, CLIPS))
@pytest.mark.parametrize("suffix", ["mp4", "mkv", "hevc"])
def test_stitched_block_equals_its_tiles(tiled: Shelf, name: str, suffix: str) -> None:
    """The layout differs in each segment."""
    video = tiled.video(name)
    path = f"roi={INNER}.{suffix}"
    size = tiled.size(name, path)
    data = tiled.read(name, path)
    assert len(data) == size
    wanted = composed(tiled, name, INNER, range(len(video)))
    assert are_equal(planes(data), wanted)
    if suffix != "hevc":
        assert are_shown_at(data, times(video), suffix)


def are_shown_at(data: bytes, right: list[Fraction], suffix: str) -> bool:
    found = [(frame.pts or 0) * (frame.time_base or Fraction(0)) for frame in decoded(data)]
    tolerance = 0 if suffix == "mp4" else Fraction(1, 20_000)
    return max(abs(a - b) for a, b in zip(found, right, strict=True)) <= tolerance


@pytest.mark.usefixtures("nothing_else")
@pytest.mark.parametrize("name", one_in(4, ["traffic.mp4", "variable-rate.mkv", "odd-size.webm"]))
@pytest.mark.parametrize("path", ["codec=hevc.mp4", "codec=hevc.mkv", "full.hevc"])
def test_full_frames_are_stitched_on_request_for_hevc(tiled: Shelf, name: str, path: str) -> None:
    video = tiled.video(name)
    data = tiled.read(name, path)
    even = Rect(0, 0, video.width // 2 * 2, video.height // 2 * 2)
    assert are_equal(planes(data), composed(tiled, name, even, range(len(video))))
    if not path.endswith("hevc"):
        assert are_shown_at(data, times(video), path[-3:])


@pytest.mark.parametrize("name", ["traffic.mp4", "odd-size.webm"])
def test_two_decoders_agree(tiled: Shelf, name: str, libde265: str, tmp_path: Path) -> None:
    for path in (f"roi={INNER}.hevc", "full.hevc", "roi=128x112+192+128.hevc"):
        data = tiled.read(name, path)
        shown = planes(data)
        height, width = shown[0][0].shape
        found = file_by_libde265(libde265, data, width, height, tmp_path)
        assert are_equal(found, shown), path


def test_originals_are_copied_if_possible(tiled: Shelf) -> None:
    for name in ("traffic.mp4", "variable-rate.mp4"):
        source, table = FOLDER.joinpath(name).read_bytes(), context_of(tiled.video(name)).table
        entry = table.frame(0)
        packet = source[entry.position : entry.position + entry.size]
        for path in ("full.mp4", f"roi={tiled.video(name).original.media.frame_rect}.mkv"):
            assert packet in tiled.read(name, path), path
    assert packet in tiled.read(name, "codec=hevc.mp4")  # the codec of the original


@pytest.mark.usefixtures("nothing_else")
def test_span_begins_at_a_segment_and_ends_anywhere(tiled: Shelf) -> None:
    video = tiled.video("traffic.mp4")
    second = video.tiles.sequences(None, 0.5)[1]
    for stop in (second.stop, second.stop + 7, second.start + 1, len(video)):
        frames = range(second.start, stop)
        data = tiled.read("traffic.mp4", f"frames={frames.start}-{stop},roi={INNER}.mp4")
        assert are_equal(planes(data), composed(tiled, "traffic.mp4", INNER, frames))
        assert are_shown_at(data, [Fraction(k, 30) for k in range(len(frames))], "mp4")
    start, end = (frame / 30 for frame in (second.start, second.stop))
    by_time = tiled.read("traffic.mp4", f"t={start:g}-{end:g},roi={INNER}.mp4")
    frames = range(second.start, second.stop)
    assert are_equal(planes(by_time), composed(tiled, "traffic.mp4", INNER, frames))


def is_stitched(shelf: Shelf, name: str, path: str) -> bool:
    store = shelf.store
    renditions = ViewResolver(store.parts, store.tools, lambda made, _ino, _path: made)
    rendition = renditions.resolve(renditions.lookup(shelf.video(name).info.ino), path)
    renditions.close()
    return isinstance(rendition, stitch.StitchedView)


@pytest.mark.parametrize(
    ("path", "right"),
    one_in(
        4,
        [
            (f"roi={INNER}.mp4", True),
            (f"roi={INNER},codec=hevc.mkv", True),
            (f"roi={INNER},size=128x128.mp4", True),
            ("roi=128x112+192+128.mp4", True),
            (f"roi={INNER}.h264", False),
            (f"roi={INNER},codec=h264.mp4", False),
            (f"roi={INNER},size=64x64.mp4", False),
            (f"roi={INNER},fps=10.mp4", False),
            (f"frames=0-20-2,roi={INNER}.mp4", False),
            (f"frames=1-20,roi={INNER}.mp4", False),
            (f"roi={INNER}.y4m", False),
            ("roi=64x128+128+0.mp4", False),  # an edge that some layouts lack
            ("roi=126x128+64+0.mp4", False),
            ("size=160x0,codec=hevc.mp4", False),
            ("full.h264", False),
            ("full.hevc", True),
        ],
    ),
)
def test_stitched_views(tiled: Shelf, path: str, right: bool) -> None:
    assert is_stitched(tiled, "traffic.mp4", path) == right
    count = len(decoded(tiled.read("traffic.mp4", path)))
    assert count in (120, 40, 19, 10) or not right


def test_explain_reports_copied_tiles(tiled: Shelf) -> None:
    path = f"roi={INNER}.mp4"
    found = tiled.video("traffic.mp4").views.explain(path)
    assert (found.made, found.sources) == ("stitched", ())
    assert {(step.does, step.origin, step.codec) for step in found.steps} == {
        ("copy", "tiles", STITCHABLE)
    }
    assert [frame for step in found.steps for frame in step.frames] == list(range(120))
    assert 0 < sum(step.bytes for step in found.steps) < tiled.size("traffic.mp4", path)
    assert 30 < found.psnr < 60


def test_rotated_video_is_stitched_into_mp4(tiled: Shelf) -> None:
    path = "roi=112x192+0+0.mp4"  # of the upright frame
    assert is_stitched(tiled, "portrait.mp4", path)
    assert not is_stitched(tiled, "portrait.mp4", "roi=112x192+0+0.mkv")
    video = tiled.video("portrait.mp4")
    area = Rect(0, 128, 192, 240)
    data = tiled.read("portrait.mp4", path)
    assert are_equal(planes(data), composed(tiled, "portrait.mp4", area, range(len(video))))
    (frame, *_) = decoded(data)
    assert frame.rotation % 360 == 270


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_players_play_stitched_views(tiled: Shelf, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(tiled.read("variable-rate.mkv", f"roi={INNER}.{suffix}"))
    video = tiled.video("variable-rate.mkv")
    capture = cv2.VideoCapture(str(path))
    count = 0
    while capture.read()[0]:
        count += 1
    capture.release()
    assert count == len(video)
    if shutil.which("ffmpeg") is None:
        return
    done = subprocess.run(
        [
            *("ffmpeg", "-v", "error", "-xerror", "-i", str(path)),
            *("-fps_mode", "passthrough", "-enc_time_base", "-1", "-f", "null", "-"),
        ],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = subprocess.run(
        [
            *("ffprobe", "-v", "error", "-select_streams", "v", "-of", "csv=p=0"),
            *("-show_entries", "stream=codec_name,profile,codec_tag_string,width,height"),
            str(path),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    tag = "hvc1" if suffix == "mp4" else "[0][0][0][0]"
    assert told == f"hevc,Main,{tag},128,128"


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_seek_leads_to_the_right_frame(tiled: Shelf, suffix: str) -> None:
    wanted = composed(tiled, "traffic.mp4", INNER, range(120))
    data = tiled.read("traffic.mp4", f"roi={INNER}.{suffix}")
    with av.open(io.BytesIO(data), mode="r") as container:
        stream = container.streams.video[0]
        assert stream.time_base is not None
        for number in (100, 3, 61):
            container.seek(int(Fraction(number, 30) / stream.time_base), stream=stream)
            for frame in container.decode(stream):
                if round((frame.pts or 0) * stream.time_base * 30) == number:
                    assert are_equal([samples(frame)], [wanted[number]])
                    break
            else:
                pytest.fail("the picture is not there")


def test_more_layouts_than_fit_into_one_header(
    tiled: Shelf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each segment then carries its own parameter sets."""
    before = tiled.read("traffic.mp4", f"roi={INNER}.mp4")
    monkeypatch.setattr(stitch, "MAX_PICTURE_SETS", 2)
    views = Views(tiled.store.parts, tiled.store.tools)
    shelf = Shelf(tiled.store, views)
    for suffix in ("mp4", "mkv"):
        data = shelf.read("traffic.mp4", f"roi={INNER}.{suffix}")
        assert data != before
        assert (b"hev1" in data) == (suffix == "mp4")
        assert are_equal(planes(data), planes(before))
    views.close()


def test_parts_can_be_read_in_any_order(tiled: Shelf) -> None:
    path = f"roi={INNER}.mkv"
    whole = tiled.read("traffic.mp4", path)
    views = Views(tiled.store.parts, tiled.store.tools)
    file = views.open(tiled.video("traffic.mp4").info.ino, path)
    for at in (len(whole) - 5000, len(whole) // 2, 0):
        buffer = bytearray(5000)
        count = file.readinto(memoryview(buffer), at)
        assert bytes(buffer[:count]) == whole[at : at + 5000]
    file.close()
    views.close()


def test_opened_view_has_equal_bytes(tiled: Shelf) -> None:
    with tiled.video("traffic.mp4").views.open(f"roi={INNER}.mp4") as file:
        assert file.read() == tiled.read("traffic.mp4", f"roi={INNER}.mp4")


# ------------------------------------------------------------------------- what is not stitched


def test_tiles_of_other_codecs_are_never_stitched(fresh: Shelf) -> None:
    fresh.video("traffic.mp4").tiles.retile("192+128x128+112")
    assert not is_stitched(fresh, "traffic.mp4", "roi=192x128+0+0.mp4")


@pytest.fixture(scope="module")
def tiled_alone(tmp_path_factory: pytest.TempPathFactory, kvazaar: None) -> Path:
    """A closed store with one tiled video."""
    path = tmp_path_factory.mktemp("alone") / "store"
    with new_store(path) as store:
        tile(store.ingest(FOLDER / "traffic.mp4", "traffic.mp4"))
    return path


@pytest.fixture
def one(tiled_alone: Path, tmp_path: Path) -> Iterator[Shelf]:
    """A copy of that store, before any read of its views."""
    with Store.open(shutil.copytree(tiled_alone, tmp_path / "store")) as store:
        views = Views(store.parts, store.tools)
        yield Shelf(store, views)
        views.close()


def test_tiles_of_low_quality_are_not_stitched(one: Shelf) -> None:
    assert is_stitched(one, "traffic.mp4", f"roi={INNER}.mp4")
    video = one.video("traffic.mp4")
    settings = TileSettings(STITCHABLE, quality=40)
    video.tiles.retile(first_segment(video), settings=settings)
    assert not is_stitched(one, "traffic.mp4", f"roi={INNER}.mp4")


def first_segment(video: Video) -> list[PlannedSegment]:
    layout = TileLayout.cut_at(video.width, video.height, *LAYOUTS[0])
    return [PlannedSegment(video.tiles.sequences(None, 0.5)[0], layout)]


def test_new_tiles_are_used_after_close(one: Shelf) -> None:
    path = f"roi={INNER}.mp4"
    file = one.open("traffic.mp4", path)
    before = one.read("traffic.mp4", path)
    video = one.video("traffic.mp4")
    settings = TileSettings(STITCHABLE, quality=16)
    video.tiles.retile(first_segment(video), settings=settings)
    data = bytearray(file.size)
    assert file.readinto(memoryview(data), 0) == len(before)
    assert bytes(data) == before
    assert one.size("traffic.mp4", path) == len(before)
    file.close()
    after = one.read("traffic.mp4", path)
    assert len(after) != len(before)
    assert are_equal(planes(after), composed(one, "traffic.mp4", INNER, range(120)))


def damage(video: Video, shelf: Shelf, number: int, change: Callable[[Path], None]) -> None:
    segment = shelf.store.catalog.segments(video.info)[number]
    path = shelf.store.parts.objects.path(segment.object_key)
    path.chmod(0o600)
    change(path)


def zero(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20_000] + bytes(20_000))


@pytest.mark.parametrize("change", [zero, Path.unlink])
def test_missing_tiles_raise_a_logged_error(
    one: Shelf, change: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    video = one.video("traffic.mp4")
    file = one.open("traffic.mp4", "full.hevc")
    damage(video, one, 2, change)
    with pytest.raises(IntegrityError, match="the tiles of frames"):
        file.readinto(memoryview(bytearray(file.size)), 0)
    file.close()
    assert "cannot be stitched" in caplog.text


def test_view_without_a_frame_table_is_encoded(
    one: Shelf, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> Any:
        raise FileNotFoundError("no such pack")

    monkeypatch.setattr(PackPool, "cells", gone)
    assert not is_stitched(one, "traffic.mp4", f"roi={INNER}.mp4")
    assert "instead of stitched" in caplog.text
    assert len(decoded(one.read("traffic.mp4", f"roi={INNER}.mp4"))) == 120


def test_headers_have_all_layouts(tiled: Shelf) -> None:
    data = tiled.read("traffic.mp4", f"roi={INNER}.mp4")
    with av.open(io.BytesIO(data), mode="r") as container:
        extradata = container.streams.video[0].codec_context.extradata or b""
    kinds = [nal.unit_type("hevc", unit) for unit in nal.parameter_sets("hevc", extradata)]
    assert kinds[:2] == [nal.HEVC_VPS, nal.HEVC_SPS]
    assert 2 <= kinds.count(nal.HEVC_PPS) <= len(LAYOUTS)


# --------------------------------------------------------------------------------------------------
# Views of a video that has tiles


REGION = Rect(20, 20, 60, 60)
RAW = "roi=40x40+20+20,pix=rgb24.raw"


def pixels(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.frombuffer(data, np.uint8).reshape(-1, 40, 40, 3)


def test_region_view_uses_tiles(fresh: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_open_view_keeps_its_sources(fresh: Shelf) -> None:
    file = fresh.open("traffic.mp4", RAW)
    exact = pixels(fresh.read("traffic.mp4", RAW))
    fresh.video("traffic.mp4").tiles.retile("uniform:3x4")
    data = bytearray(file.size)
    at = 0
    while count := file.readinto(memoryview(data)[at : at + 5000], at):
        at += count
    file.close()
    assert np.array_equal(pixels(bytes(data)), exact)


def test_view_falls_back_from_removed_tiles(
    fresh: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exact = pixels(fresh.read("traffic.mp4", RAW))
    fresh.video("traffic.mp4").tiles.retile("uniform:3x4")

    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError("no such pack")

    monkeypatch.setattr(PackPool, "pictures", gone)
    assert np.array_equal(pixels(fresh.read("traffic.mp4", RAW)), exact)
    assert "not from tiles" in caplog.text


def test_views_use_a_rendition_of_their_size(fresh: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_view_uses_only_tiles_of_the_requested_psnr(fresh: Shelf) -> None:
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


def test_cache_key_includes_the_quality_of_sources(fresh: Shelf) -> None:
    fresh.video("traffic.mp4").tiles.retile("uniform:3x4")
    names = ("roi=40x40+20+20.mp4", "roi=40x40+20+20,psnr=inf.mp4", "roi=40x40+20+20,psnr=99.mp4")
    good_enough, original, none = (fresh.read("traffic.mp4", name) for name in names)
    assert len(good_enough) == len(original)
    assert good_enough != original
    assert [p.to_ndarray().tobytes() for p in decoded(none)] == [
        p.to_ndarray().tobytes() for p in decoded(original)
    ]

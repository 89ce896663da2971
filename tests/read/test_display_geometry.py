"""Frames cropped by their container: all interfaces show the cropped area.

The size and pixel aspect of displayed frames, compared with FFmpeg.
"""

from __future__ import annotations

import json
import sqlite3
import struct
import subprocess
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import pytest

from tests.fault.older import CATALOG
from tests.support.clips import pictures
from tests.support.cropped_clips import in_matroska, recent_ffmpeg, with_aperture, with_display
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.detections import Detection
from vfsd.core.model import CropMargins
from vfsd.errors import ChangedSizeError, VfsdError

SIZE = (96, 64)
CASES = [
    # Layout; width, height, offsets of the clean aperture; cropped pixels.
    ("yuv420p", (80, 1), (48, 1), (0, 1), (0, 1), (8, 8, 8, 8)),
    ("yuv420p", (80, 1), (48, 1), (2, 1), (-4, 1), (10, 4, 6, 12)),
    ("yuv420p", (71, 1), (45, 1), (7, 2), (-3, 2), (16, 8, 10, 12)),
    ("yuv422p", (71, 1), (45, 1), (7, 2), (-3, 2), (16, 8, 10, 11)),
    ("yuv444p", (71, 1), (45, 1), (7, 2), (-3, 2), (16, 8, 9, 11)),
    ("yuv420p", (143, 2), (90, 2), (1, 4), (0, 1), (12, 8, 12, 12)),
    ("yuv420p", (120, 1), (48, 1), (0, 1), (0, 1), (0, 0, 0, 0)),
    ("yuv420p", (80, 1), (48, 1), (20, 1), (0, 1), (0, 0, 0, 0)),
]


def make_plain(
    path: Path,
    pixel_format: str = "yuv420p",
    ratio: Fraction | None = None,
    codec: Literal["libx264", "libx265"] = "libx264",
) -> Path:
    options = {"g": "10"} | ({"x265-params": "log-level=error"} if codec == "libx265" else {})
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = *SIZE, pixel_format
        if ratio is not None:
            stream.codec_context.sample_aspect_ratio = ratio
        for frame in pictures(20, *SIZE):
            output.mux(stream.encode(frame.reformat(format=pixel_format)))
        output.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(("layout", "width", "height", "across", "down", "crop"), one_in(3, CASES))
def test_clean_aperture(
    tmp_path: Path,
    layout: str,
    width: tuple[int, int],
    height: tuple[int, int],
    across: tuple[int, int],
    down: tuple[int, int],
    crop: CropMargins,
) -> None:
    plain = make_plain(tmp_path / "plain.mp4", layout)
    clip = with_aperture(tmp_path / "clip.mp4", plain, width, height, across, down)
    left, top, right, bottom = crop
    with new_store(tmp_path / "store") as store:
        store.ingest(clip, "clip.mp4")
        store.ingest(plain, "plain.mp4")
        video, whole = store["clip.mp4"], store["plain.mp4"]
        assert video.original.media.crop == crop
        assert (video.width, video.height) == (SIZE[0] - left - right, SIZE[1] - top - bottom)
        area = (left, top, SIZE[0] - right, SIZE[1] - bottom)
        expected = whole.read(region=area, format="gray").data
        assert np.array_equal(video.read(format="gray").data, expected)
        part = video.read(region=(4, 6, 20, 30), format="gray").data
        assert np.array_equal(part, expected[:, 6:30, 4:20])
        _require_shown_by_ffmpeg(clip, video)


def _require_shown_by_ffmpeg(clip: Path, video: Video) -> None:
    """Check the frame with a recent ffmpeg, if installed: older ones ignore crops of containers."""
    command = recent_ffmpeg()
    if command is None:
        return
    done = subprocess.run(
        [command, "-v", "error", "-i", str(clip), "-pix_fmt", "gray", "-f", "rawvideo", "-"],
        capture_output=True,
        check=True,
    )
    assert len(done.stdout) == len(video) * video.width * video.height


# Pixels off the left, top, right and bottom, by the codec's own parameters.  No left edge of these
# lies on a multiple of 32; FFmpeg's decoders round it to one unless asked not to.
_CODED_CROPS: list[tuple[str, CropMargins]] = [
    ("clip.mp4", (26, 6, 10, 8)),
    ("clip.mkv", (34, 2, 4, 6)),
    ("clip.h264", (2, 0, 0, 0)),
    ("clip.hevc", (26, 6, 10, 8)),
    ("hevc.mp4", (2, 0, 0, 0)),
]


@pytest.mark.parametrize(("name", "crop"), _CODED_CROPS)
def test_coded_crop(tmp_path: Path, name: str, crop: CropMargins) -> None:
    codec = "hevc" if "hevc" in name else "h264"
    plain = make_plain(tmp_path / "plain.mp4", codec="libx265" if codec == "hevc" else "libx264")
    clip = tmp_path / name
    left, top, right, bottom = crop
    sides = zip(("left", "top", "right", "bottom"), crop, strict=True)
    told = ":".join(f"crop_{side}={pixels}" for side, pixels in sides)
    filters = f"{codec}_metadata={told}"
    if clip.suffix == f".{codec}":
        filters = f"{codec}_mp4toannexb,{filters}"
    _filter_packets(plain, clip, filters)
    with new_store(tmp_path / "store") as store:
        store.ingest(clip, name)
        store.ingest(plain, "plain.mp4")
        video = store[name]
        assert (video.width, video.height) == (SIZE[0] - left - right, SIZE[1] - top - bottom)
        for layout in ("gray", "rgb24"):
            whole = store["plain.mp4"].read(format=layout).data
            expected = whole[:, top : SIZE[1] - bottom, left : SIZE[0] - right]
            found = video.read(format=layout).data
            if layout == "gray":
                assert np.array_equal(found, expected)
            else:  # chroma is interpolated at the edges
                assert np.array_equal(found[:, 2:-2, 2:-2], expected[:, 2:-2, 2:-2])
        assert np.array_equal(video[7].data, video.read(frames=[7]).data[0])
        _require_shown_by_ffmpeg(clip, video)


def _filter_packets(source: Path, target: Path, filters: str) -> None:
    command = ["ffmpeg", "-v", "error", "-i", str(source), "-c", "copy", "-bsf:v", filters]
    subprocess.run([*command, str(target)], check=True)


def test_older_coded_crop(tmp_path: Path) -> None:
    """A video that was indexed with cropped columns included is corrected, including its boxes."""
    plain, clip = make_plain(tmp_path / "plain.mp4"), tmp_path / "clip.mp4"
    _filter_packets(plain, clip, "h264_metadata=crop_left=26:crop_top=6")
    with new_store(tmp_path / "store") as store:
        store.ingest(clip, "clip.mp4")
        right = store["clip.mp4"].read().data
    with closing(sqlite3.connect(tmp_path / "store" / CATALOG)) as catalog, catalog:
        catalog.execute(
            "UPDATE physical_videos SET verified = 1, width = 96, "
            "media = json_set(media, '$.width', 96)"
        )
    with Store.open(tmp_path / "store") as store:
        old = store["clip.mp4"]
        with pytest.raises(ChangedSizeError):
            old.read()
        old.labels.add([Detection(5, "car", (40, 12, 72, 44))], "me")
        assert old.verify()
        video = store["clip.mp4"]
        assert (video.width, video.height) == (70, 58)
        assert np.array_equal(video.read().data, right)
        assert [found.box for found in video.labels.query("car")] == [(14, 12, 46, 44)]


@pytest.mark.parametrize("container", one_in(2, ["mp4", "mkv"]))
@pytest.mark.parametrize("ratio", [None, Fraction(4, 3)])
def test_views_keep_crop(tmp_path: Path, container: str, ratio: Fraction | None) -> None:
    plain = make_plain(tmp_path / "plain.mp4", ratio=ratio)
    clip = with_aperture(tmp_path / "clip.mp4", plain, (80, 1), (48, 1), (2, 1), (-4, 1))
    if container == "mkv":
        clip = in_matroska(tmp_path / "clip.mkv", clip)
    with new_store(tmp_path / "store") as store:
        video = store[store.ingest(clip, clip.name).name]
        if video.original.media.crop == (0, 0, 0, 0) and container == "mkv":
            pytest.skip("this FFmpeg writes no PixelCrop")
        right = video.read(format="yuv420p").data
        for name, made in (
            ("full.mp4", "copied"),
            ("full.mkv", "copied"),
            ("t=0.24-0.72.mp4", "encoded"),
            ("full.h264", "encoded"),
            ("codec=ffv1.mkv", "encoded"),
            ("size=40x24.mp4", "encoded"),
        ):
            assert video.views.explain(name).made == made
            path = tmp_path / f"view-{name}"
            with video.views.open(name) as file:
                path.write_bytes(file.read())
            shown = store[store.ingest(path, path.name).name]
            if name.startswith(("full.m", "codec")):
                assert np.array_equal(shown.read(format="yuv420p").data, right)
                assert shown.original.media.sample_aspect_ratio in (ratio, ratio or 1)
            size = (40, 24) if name.startswith("size") else (80, 48)
            assert (shown.width, shown.height) == size
        reason = video.views.explain("full.h264").why or ""
        assert "cropped" in reason
        assert json.loads(video.views.open("info.json").read())["media"]["crop"] == [10, 4, 6, 12]


def test_tiles_and_boxes(tmp_path: Path) -> None:
    plain = make_plain(tmp_path / "plain.mp4")
    clip = with_aperture(tmp_path / "clip.mp4", plain, (80, 1), (48, 1), (2, 1), (-4, 1))
    with new_store(tmp_path / "store") as store:
        store.ingest(clip, "clip.mp4")
        video = store["clip.mp4"]
        whole = video.read().data
        video.labels.add([Detection(5, "car", (8, 8, 40, 40))], "me")
        (found,) = video.labels.query("car")
        with video.views.open("objects/car/000005-0.npy") as file:
            crop = np.load(file)
        assert np.array_equal(crop, whole[5, 8:40, 8:40])
        assert found.box == (8, 8, 40, 40)


def test_replace_refused(tmp_path: Path) -> None:
    plain = make_plain(tmp_path / "plain.mp4")
    clip = with_aperture(tmp_path / "clip.mp4", plain, (80, 1), (48, 1))
    with new_store(tmp_path / "store") as store:
        store.ingest(clip, "clip.mp4")
        video = store["clip.mp4"]
        video.policy.set("original=replaceable,psnr=34")
        with pytest.raises(VfsdError):
            video.policy.replace_original()
        assert video.original.media.crop == (8, 8, 8, 8)


def test_older_rows(tmp_path: Path) -> None:
    """A video that was indexed before crops were supported is corrected, including its boxes."""
    plain = make_plain(tmp_path / "plain.mp4")
    clip = with_aperture(tmp_path / "clip.mp4", plain, (80, 1), (48, 1), (2, 1), (-4, 1))
    with new_store(tmp_path / "store") as store:
        store.ingest(clip, "clip.mp4")
        right = store["clip.mp4"].read().data
    with closing(sqlite3.connect(tmp_path / "store" / CATALOG)) as catalog, catalog:
        catalog.execute(
            "UPDATE physical_videos SET verified = 1, width = 96, height = 64, media = "
            "json_set(json_remove(media, '$.crop'), '$.width', 96, '$.height', 64)"
        )
    with Store.open(tmp_path / "store") as store:
        old = store["clip.mp4"]
        assert (old.width, old.height) == SIZE
        before = old.read().data
        old.labels.add([Detection(5, "car", (18, 12, 50, 44))], "me")
        assert old.verify()
        video = store["clip.mp4"]
        assert (video.width, video.height) == (80, 48)
        assert np.array_equal(video.read().data, right)
        (found,) = video.labels.query("car")
        assert found.box == (8, 8, 40, 40)
        assert np.array_equal(right[5, 8:40, 8:40], before[5, 12:44, 18:50])


# --------------------------------------------------------------------------------------------------
# The size and pixel aspect of displayed frames, compared with FFmpeg


_ENCODERS = {"h264": "libx264", "hevc": "libx265"}
_SEQUENCE, _EXTENSION = b"\0\0\1\xb3", b"\0\0\1\xb5"


def _encode(
    path: Path,
    codec: str,
    ratio: Fraction | None = None,
    patch: tuple[int, tuple[int, int]] | None = None,
) -> Path:
    """A clip of 10 frames.  `patch` is an aspect ratio code of MPEG-2 and a display size."""
    options = {"x265-params": "log-level=error"} if codec == "libx265" else {}
    if patch is not None:
        options = {"seq_disp_ext": "always"}
    with av.open(str(path), "w") as output:
        stream: Any = output.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        stream.codec_context.max_b_frames = 0
        if ratio is not None:
            stream.codec_context.sample_aspect_ratio = ratio
        for frame in [*pictures(10, *SIZE), None]:
            for packet in stream.encode(frame):
                if patch is not None:
                    packet = _patched(packet, *patch)
                packet.stream = stream
                output.mux(packet)
    return path


def _filtered(path: Path, clip: Path, filters: str) -> Path:
    """`clip` in another container, with changed parameter sets."""
    command = ["ffmpeg", "-v", "error", "-y", "-i", str(clip), "-c", "copy", "-bsf:v", filters]
    subprocess.run([*command, str(path)], check=True)
    return path


def _patched(packet: Any, code: int, size: tuple[int, int]) -> Any:
    data = bytearray(bytes(packet))
    at = data.find(_SEQUENCE)
    if at >= 0:
        data[at + 7] = data[at + 7] & 15 | code << 4
    at = data.find(_EXTENSION)
    while at >= 0:
        if data[at + 4] >> 4 == 2:  # sequence_display_extension
            start = at + (8 if data[at + 4] & 1 else 5)
            bits = size[0] << 18 | 1 << 17 | size[1] << 3
            data[start : start + 4] = struct.pack(">I", bits)
        at = data.find(_EXTENSION, at + 4)
    made: Any = av.Packet(bytes(data))
    made.pts, made.dts, made.time_base = packet.pts, packet.dts, packet.time_base
    made.is_keyframe = packet.is_keyframe
    return made


def _require_as_shown(clip: Path, video: Video, size: tuple[int, int], ratio: Fraction) -> None:
    """Asserts the size and pixel shape, and that FFmpeg shows the same picture."""
    told = video.original.media.sample_aspect_ratio or Fraction(1)
    assert ((video.width, video.height), told) == (size, ratio)
    command = recent_ffmpeg()
    if command is None:
        return
    options = ["-pix_fmt", "yuv420p", "-f", "yuv4mpegpipe", "-"]
    done = subprocess.run(
        [command, "-v", "error", "-i", str(clip), *options], capture_output=True, check=True
    )
    head, _, frames = done.stdout.partition(b"\n")
    fields = {field[:1]: field[1:].decode() for field in head.split()[1:]}
    over, under = map(int, fields[b"A"].split(":"))
    assert (int(fields[b"W"]), int(fields[b"H"])) == size
    assert (Fraction(over, under) if under else Fraction(1)) == ratio
    width, height = size
    length = width * height + 2 * (-(-width // 2) * -(-height // 2))
    shown = np.frombuffer(frames, np.uint8).reshape(len(video), len(b"FRAME\n") + length)
    found = video.read(format="yuv420p").data.reshape(len(video), -1)
    assert np.array_equal(found, shown[:, len(b"FRAME\n") :])


def _check(clip: Path, size: tuple[int, int], ratio: Fraction, views: tuple[str, ...] = ()) -> None:
    """Compares a clip and views of it with FFmpeg."""
    with new_store(clip.parent / "store") as store:
        video = store[store.ingest(clip, clip.name).name]
        _require_as_shown(clip, video, size, ratio)
        for name in views:
            path = clip.parent / f"view-{name}"
            with video.views.open(name) as file:
                path.write_bytes(file.read())
            made = store[store.ingest(path, path.name).name]
            _require_as_shown(path, made, size, ratio)


@pytest.mark.parametrize("name", one_in(3, ["a.mpg", "a.ts", "a.m2v", "a.mkv", "a.mp4"]))
@pytest.mark.parametrize(
    ("code", "size", "ratio"),
    one_in(
        2,
        [
            (1, (72, 64), Fraction(1)),
            # The code refers to the display size where that gives pictures of 4:3 or 16:9.
            (2, (72, 64), Fraction(32, 27)),
            (2, (48, 32), Fraction(8, 9)),
            (3, (96, 48), Fraction(8, 9)),
            # Otherwise it refers to the coded size.
            (2, (80, 48), Fraction(8, 9)),
            (4, (72, 64), Fraction(221, 150)),
        ],
    ),
)
def test_mpeg2_display(
    tmp_path: Path, name: str, code: int, size: tuple[int, int], ratio: Fraction
) -> None:
    clip = _encode(tmp_path / name, "mpeg2video", patch=(code, size))
    _check(clip, SIZE, ratio)


_VIEWS = ("full.mp4", "full.mkv", "t=0.08-0.28.mp4")
_CODED_CROP = "crop_left=10:crop_top=2:crop_right=4:crop_bottom=6"


@pytest.mark.parametrize("codec", ["h264", "hevc"])
@pytest.mark.parametrize("container", one_in(2, ["mp4", "mkv", "ts"]))
@pytest.mark.parametrize("outer", [None, Fraction(4, 3)])
def test_coded_crop_aspect(
    tmp_path: Path, codec: str, container: str, outer: Fraction | None
) -> None:
    plain = _encode(tmp_path / "plain.mp4", _ENCODERS[codec], outer)
    filters = f"{codec}_metadata=sample_aspect_ratio=16/11:{_CODED_CROP}"
    if container == "ts":
        filters = f"{codec}_mp4toannexb,{filters}"
    clip = _filtered(tmp_path / f"a.{container}", plain, filters)
    # MP4 and Matroska have their own aspect ratio, which takes precedence.
    ratio = Fraction(16, 11) if outer is None or container == "ts" else outer
    _check(clip, (82, 56), ratio)


@pytest.mark.parametrize("view", _VIEWS)
@pytest.mark.parametrize("outer", one_in(2, [None, Fraction(1), Fraction(4, 3)]))
def test_view_aspect(tmp_path: Path, view: str, outer: Fraction | None) -> None:
    """Views keep the exact aspect ratio, including square pixels of a container."""
    plain = _encode(tmp_path / "plain.mp4", "libx264", outer)
    filters = f"h264_metadata=sample_aspect_ratio=16/11:{_CODED_CROP}"
    clip = _filtered(tmp_path / "a.mp4", plain, filters)
    _check(clip, (82, 56), outer or Fraction(16, 11), (view,))


@pytest.mark.parametrize("codec", one_in(2, ["h264", "hevc"]))
@pytest.mark.parametrize(("filters", "size"), [("", (60, 40)), (f":{_CODED_CROP}", (46, 32))])
@pytest.mark.parametrize("outer", [Fraction(1), Fraction(4, 3)])
def test_aperture_aspect(
    tmp_path: Path, codec: str, filters: str, size: tuple[int, int], outer: Fraction
) -> None:
    """A clean aperture applies after the stream's own crop; pasp gives the aspect ratio."""
    plain = _encode(tmp_path / "plain.mp4", _ENCODERS[codec], outer)
    bitstream = f"{codec}_metadata=sample_aspect_ratio=16/11{filters}"
    coded = _filtered(tmp_path / "coded.mp4", plain, bitstream)
    clip = with_aperture(tmp_path / "a.mp4", coded, (61, 1), (40, 1), (7, 2), (-4, 1))
    _check(clip, size, outer, ("full.mp4",))


_CROP = {0x54CC: 6, 0x54BB: 4, 0x54DD: 8, 0x54AA: 2}
_WIDTH, _HEIGHT, _UNIT = 0x54B0, 0x54BA, 0x54B2


@pytest.mark.parametrize("is_coded", [False, True])
@pytest.mark.parametrize(
    ("fields", "aspect"),
    one_in(
        2,
        [
            ({}, None),
            ({_WIDTH: 110, _HEIGHT: 58}, Fraction(110, 58)),
            ({_UNIT: 0, _WIDTH: 55, _HEIGHT: 87}, Fraction(55, 87)),
            ({_UNIT: 1, _WIDTH: 30, _HEIGHT: 17}, Fraction(30, 17)),
            ({_UNIT: 3, _WIDTH: 16, _HEIGHT: 9}, Fraction(16, 9)),
        ],
    ),
)
def test_matroska_display(
    tmp_path: Path, is_coded: bool, fields: dict[int, int], aspect: Fraction | None
) -> None:
    """The display size is that of the cropped picture, whatever its unit."""
    plain = _encode(tmp_path / "plain.mp4", "libx264")
    filters = f"h264_metadata=sample_aspect_ratio=16/11:{_CODED_CROP}" if is_coded else "null"
    coded = _filtered(tmp_path / "coded.mp4", plain, filters)
    # The second step sets the container's size to that after the stream's own crop.
    matroska = _filtered(tmp_path / "coded.mkv", coded, "null")
    clip = with_display(tmp_path / "a.mkv", matroska, _CROP | fields)
    width, height = (68, 50) if is_coded else (82, 58)
    ratio = Fraction(1) if aspect is None else aspect * Fraction(height, width)
    _check(clip, (width, height), ratio)

"""The size and pixel shape of displayed pictures, compared with those that FFmpeg shows."""

from __future__ import annotations

import struct
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.codecs.cropping import recent_ffmpeg, with_aperture, with_display
from tests.codecs.making import pictures
from tests.stores import new_store
from vfsd.api.video import Video

SIZE = (96, 64)
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


@pytest.mark.parametrize("name", ["a.mpg", "a.ts", "a.m2v", "a.mkv", "a.mp4"])
@pytest.mark.parametrize(
    ("code", "size", "ratio"),
    [
        (1, (72, 64), Fraction(1)),
        # The code refers to the display size where that gives pictures of 4:3 or 16:9.
        (2, (72, 64), Fraction(32, 27)),
        (2, (48, 32), Fraction(8, 9)),
        (3, (96, 48), Fraction(8, 9)),
        # Else to the coded size.
        (2, (80, 48), Fraction(8, 9)),
        (4, (72, 64), Fraction(221, 150)),
    ],
)
def test_mpeg2_display(
    tmp_path: Path, name: str, code: int, size: tuple[int, int], ratio: Fraction
) -> None:
    clip = _encode(tmp_path / name, "mpeg2video", patch=(code, size))
    _check(clip, SIZE, ratio)


_VIEWS = ("full.mp4", "full.mkv", "t=0.08-0.28.mp4")
_CODED_CROP = "crop_left=10:crop_top=2:crop_right=4:crop_bottom=6"


@pytest.mark.parametrize("codec", ["h264", "hevc"])
@pytest.mark.parametrize("container", ["mp4", "mkv", "ts"])
@pytest.mark.parametrize("outer", [None, Fraction(4, 3)])
def test_coded_crop_aspect(
    tmp_path: Path, codec: str, container: str, outer: Fraction | None
) -> None:
    plain = _encode(tmp_path / "plain.mp4", _ENCODERS[codec], outer)
    filters = f"{codec}_metadata=sample_aspect_ratio=16/11:{_CODED_CROP}"
    if container == "ts":
        filters = f"{codec}_mp4toannexb,{filters}"
    clip = _filtered(tmp_path / f"a.{container}", plain, filters)
    # MP4 and Matroska tell a shape of their own, which comes first.
    ratio = Fraction(16, 11) if outer is None or container == "ts" else outer
    _check(clip, (82, 56), ratio)


@pytest.mark.parametrize("view", _VIEWS)
@pytest.mark.parametrize("outer", [None, Fraction(1), Fraction(4, 3)])
def test_view_aspect(tmp_path: Path, view: str, outer: Fraction | None) -> None:
    """Views keep the exact shape, square pixels of a container included."""
    plain = _encode(tmp_path / "plain.mp4", "libx264", outer)
    filters = f"h264_metadata=sample_aspect_ratio=16/11:{_CODED_CROP}"
    clip = _filtered(tmp_path / "a.mp4", plain, filters)
    _check(clip, (82, 56), outer or Fraction(16, 11), (view,))


@pytest.mark.parametrize("codec", ["h264", "hevc"])
@pytest.mark.parametrize(("filters", "size"), [("", (60, 40)), (f":{_CODED_CROP}", (46, 32))])
@pytest.mark.parametrize("outer", [Fraction(1), Fraction(4, 3)])
def test_aperture_aspect(
    tmp_path: Path, codec: str, filters: str, size: tuple[int, int], outer: Fraction
) -> None:
    """A clean aperture crops what the stream's own crop leaves; pasp tells the shape."""
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
    [
        ({}, None),
        ({_WIDTH: 110, _HEIGHT: 58}, Fraction(110, 58)),
        ({_UNIT: 0, _WIDTH: 55, _HEIGHT: 87}, Fraction(55, 87)),
        ({_UNIT: 1, _WIDTH: 30, _HEIGHT: 17}, Fraction(30, 17)),
        ({_UNIT: 3, _WIDTH: 16, _HEIGHT: 9}, Fraction(16, 9)),
    ],
)
def test_matroska_display(
    tmp_path: Path, is_coded: bool, fields: dict[int, int], aspect: Fraction | None
) -> None:
    """The display size is that of the cropped picture, whatever its unit."""
    plain = _encode(tmp_path / "plain.mp4", "libx264")
    filters = f"h264_metadata=sample_aspect_ratio=16/11:{_CODED_CROP}" if is_coded else "null"
    coded = _filtered(tmp_path / "coded.mp4", plain, filters)
    # The second step gives the container the size that the stream's own crop leaves.
    matroska = _filtered(tmp_path / "coded.mkv", coded, "null")
    clip = with_display(tmp_path / "a.mkv", matroska, _CROP | fields)
    width, height = (68, 50) if is_coded else (82, 58)
    ratio = Fraction(1) if aspect is None else aspect * Fraction(height, width)
    _check(clip, (width, height), ratio)

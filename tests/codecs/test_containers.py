"""Containers of all kinds: count, order and times of frames, and every sample.

Containers and codecs of all kinds: each frame read alone equals that of a decode in order.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.stream import VideoStream

from sample_videos import CLIPS, FOLDER, GroundTruth
from tests.support.clips import make_clip, pictures
from tests.support.ffmpeg_reference import assert_exact, pyav_checksums
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.codecs.containers.detect_container import HEAD_BYTES, detect_container
from vfsd.codecs.probing.probe import examine
from vfsd.codecs.pyav import open_encoder
from vfsd.core.frame_table_pages import PacketFlag
from vfsd.core.model import Access
from vfsd.errors import RefusedMediaError

_B = ("-bf", "2", "-g", "12")
_PAL = ("-s", "720x576", "-pix_fmt", "yuv420p")
_NTSC = ("-s", "720x480", "-r", "30000/1001", "-pix_fmt", "yuv411p")
KINDS: dict[str, tuple[str, ...]] = {
    "mpeg2.mxf": ("-c:v", "mpeg2video", *_B),
    "h264.mxf": ("-c:v", "libx264", *_B),
    "h264-p.mxf": ("-c:v", "libx264", "-bf", "0"),
    "atom.mxf": (
        *("-c:v", "dnxhd", "-profile:v", "dnxhr_sq", "-pix_fmt", "yuv422p", "-s", "256x128"),
        *("-f", "mxf_opatom"),
    ),
    "a.wmv": ("-c:v", "wmv2", "-g", "12"),
    "b.asf": ("-c:v", "msmpeg4", "-g", "12"),
    "h264.asf": ("-c:v", "libx264", *_B),
    "rv10.rm": ("-c:v", "rv10", "-g", "12"),
    "rv20.rm": ("-c:v", "rv20", "-g", "12"),
    "a.gif": (),
    "a.apng": ("-f", "apng"),
    "a.dv": ("-c:v", "dvvideo", *_PAL),
    "ntsc.dv": ("-c:v", "dvvideo", *_NTSC),
    "a.nut": ("-c:v", "ffv1", "-g", "5"),
    "a.ogv": ("-c:v", "libtheora", "-g", "12"),
    "vp8.ogg": (
        "-c:v",
        "libvpx",
    ),
    "a.m2ts": ("-c:v", "libx264", *_B),
    "mpeg2.m2ts": ("-c:v", "mpeg2video", *_B, "-mpegts_m2ts_mode", "1", "-f", "mpegts"),
}


def ffmpeg(*arguments: str | Path) -> None:
    command = shutil.which("ffmpeg")
    if command is None:
        pytest.skip("there is no ffmpeg command")
    subprocess.run([command, "-nostdin", "-v", "error", *arguments], check=True)


def made(path: Path, *arguments: str) -> Path:
    ffmpeg("-f", "lavfi", "-i", "testsrc2=size=96x64:rate=25:duration=1.2", *arguments, path)
    return path


def moving_avif(path: Path, frames: int = 25) -> Path:
    """Frames in a track, in addition to the still image of every such file."""
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libsvtav1", rate=25)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        open_encoder(stream.codec_context)
        for at, frame in enumerate(pictures(frames, 96, 64)):
            frame.pts, frame.time_base = at, Fraction(1, 25)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("name", one_in(4, KINDS))
def test_each_container(name: str, tmp_path: Path) -> None:
    path = made(tmp_path / name, *KINDS[name])
    found = examine(path)
    expected = pyav_checksums(path)
    assert len(expected) >= 30
    assert_exact(path, found, expected)
    steps = np.diff(found.columns.pts[found.order])
    assert steps.max() - steps.min() <= 1  # a constant rate, except for rounding
    proven = examine(path, full=True)
    assert found.order.tolist() == proven.order.tolist()
    assert found.columns.pts.tolist() == proven.columns.pts.tolist()


def test_moving_avif(tmp_path: Path) -> None:
    path = moving_avif(tmp_path / "a.avif")
    found = examine(path)
    assert found.media.stream_index == 1
    with av.open(str(path)) as opened:
        track = opened.streams.video[1]
        assert len(list(opened.decode(track))) == len(found.order) == 25


@pytest.mark.parametrize("junk", one_in(4, [1, 188, 189, 1000, 5000, 50_000]))
@pytest.mark.parametrize("stride", [188, 192])
def test_junk_before_transport_stream(junk: int, stride: int, tmp_path: Path) -> None:
    options = ("-mpegts_m2ts_mode", str(int(stride == 192)), "-f", "mpegts")
    whole = made(tmp_path / "whole.ts", "-c:v", "libx264", *_B, *options)
    chance = np.random.default_rng(junk)
    path = tmp_path / "junk.ts"
    path.write_bytes(chance.bytes(junk) + whole.read_bytes())
    found = examine(path)
    assert found.access is Access.DEMUX
    assert_exact(path, found, pyav_checksums(whole))


@pytest.mark.parametrize(
    "head",
    [
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"<?xml version='1.0'?><MPD/>",
        b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\n",
        b"\x89PNG\r\n\x1a\n",
        b"PK\x03\x04",
    ],
)
def test_transport_stream_behind_another_format(head: bytes) -> None:
    """Trailing data never turns a playlist, or any other refused format, into a video."""
    packets = (b"G" + bytes(187)) * 100
    with pytest.raises(RefusedMediaError):
        detect_container((head + packets)[:HEAD_BYTES])
    assert detect_container(b"\x01" * 300 + packets).name == "mpegts"
    with pytest.raises(RefusedMediaError):
        detect_container(b"\x01" * 300 + packets[: 10 * 188])


@pytest.mark.parametrize(
    "head",
    [
        b"GIF88a" + bytes(100),
        b"\x06\x0e\x2b\x34" + bytes(100),
        b"\x30\x26\xb2\x75\x8e\x66\xcf\x11" + bytes(100),
        b".RMFx" + bytes(100),
        b"\x1f\x07\0\xbf" + bytes(1000),
        b"nut/multimedia" + bytes(100),
        b"\0\0\0\x1cftypavif\0\0\0\0mif1miaf" + bytes(100),
    ],
)
def test_half_a_signature(head: bytes) -> None:
    with pytest.raises(RefusedMediaError):
        detect_container(head)


def test_best_stream(tmp_path: Path) -> None:
    """Like in FFmpeg, the default video is selected, never a cover."""
    main = make_clip(tmp_path / "main.mkv", "ffv1", width=96, height=64)
    other = make_clip(tmp_path / "other.mkv", "ffv1", width=64, height=48, frames=10)
    path = tmp_path / "both.mkv"
    maps = ("-map", "0:v", "-map", "1:v", "-c", "copy")
    defaults = ("-disposition:v:0", "0", "-disposition:v:1", "default")
    ffmpeg("-i", other, "-i", main, *maps, *defaults, path)
    found = examine(path)
    assert (found.media.stream_index, found.media.width, len(found.order)) == (1, 96, 40)
    first = examine(path, stream=0)
    assert (first.media.stream_index, first.media.width, len(first.order)) == (0, 64, 10)
    assert_exact(path, first, pyav_checksums(other))
    assert [side.index for side in first.media.side_streams] == [1]
    with pytest.raises(RefusedMediaError, match="stream 2 is not a video stream") as refusal:
        examine(path, stream=2)
    assert "0, 1" in (refusal.value.hint or "")


def test_cover_before_video(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "clip.mp4", "mpeg4", frames=3)
    cover = make_clip(
        tmp_path / "cover.mkv", "mjpeg", frames=1, width=640, height=480, pixel_format="yuvj420p"
    )
    path = tmp_path / "both.mp4"
    maps = ("-map", "1:v", "-map", "0:v", "-c", "copy", "-disposition:v:0", "attached_pic")
    ffmpeg("-i", clip, "-i", cover, *maps, path)
    assert examine(path).media.codec == "mpeg4"


def test_ingest_of_other_stream(store: Store, tmp_path: Path) -> None:
    """The bytes are stored once, and a full decode uses the selected stream."""
    main = make_clip(tmp_path / "main.mkv", "ffv1", width=96, height=64)
    other = make_clip(tmp_path / "other.mkv", "ffv1", width=64, height=48, frames=10)
    path = tmp_path / "both.mkv"
    ffmpeg("-i", main, "-i", other, "-map", "0:v", "-map", "1:v", "-c", "copy", path)
    best = store.ingest(path, "best.mkv")
    second = store.ingest(path, "second.mkv", stream=1)
    assert (len(best), len(second)) == (40, 10)
    assert best.original.object_key == second.original.object_key
    assert not second.verify()
    assert store["second.mkv"].original.verified
    assert (len(second), second.original.media.stream_index) == (10, 1)
    with av.open(str(other)) as opened:
        expected = [frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)]
    np.testing.assert_array_equal(second[7], expected[7])
    with pytest.raises(RefusedMediaError, match="stream 7"):
        store.ingest(path, "none.mkv", stream=7)


@pytest.mark.parametrize(
    ("head", "form"),
    [
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "JPEG"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "PNG"),
        (b"BM\x36\x10\0\0\0\0\0\0", "BMP"),
        (b"II*\0\x08\0\0\0", "TIFF"),
        (b"MM\0*\0\0\0\x08", "TIFF"),
        (b"RIFF\x24\0\0\0WEBPVP8 ", "WebP"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIF"),
        (b"\0\0\0\x18ftypavif\0\0\0\0mif1avif", "AVIF"),
    ],
)
def test_still_image_refused(head: bytes, form: str) -> None:
    with pytest.raises(RefusedMediaError, match=rf"a still image \(.*{form}.*is not a video"):
        detect_container(head)


# --------------------------------------------------------------------------------------------------
# Containers and codecs of all kinds: each frame read alone equals that of a decode in order


@dataclass(frozen=True)
class Kind:
    file: str
    codec: str
    options: dict[str, str] = field(default_factory=dict)
    pixel_format: str = "yuv420p"
    access: Access = Access.EXTENT
    verified: bool = False
    keys: int | None = None  #: where decoding may start


_X264 = "keyint=12:min-keyint=12:scenecut=0:bframes=3:log-level=none"
_MPEG2 = {"g": "12", "bf": "2", "sc_threshold": "1000000000"}
_KINDS = {
    "h264 open": Kind("a.mp4", "libx264", {"x264-params": f"{_X264}:open-gop=1"}, keys=4),
    "h264 avi": Kind("a.avi", "libx264", {"x264-params": _X264}, verified=True, keys=4),
    "h264 flv": Kind("a.flv", "libx264", {"x264-params": _X264}, keys=4),
    "h264 stream": Kind("a.h264", "libx264", {"x264-params": _X264}, verified=True, keys=4),
    "h264 open stream": Kind(
        "a.h264", "libx264", {"x264-params": f"{_X264}:open-gop=1"}, verified=True, keys=4
    ),
    "h264 transport": Kind(
        "a.ts", "libx264", {"x264-params": f"{_X264}:open-gop=1"}, access=Access.DEMUX, keys=4
    ),
    "h264 interlaced": Kind(
        "a.ts",
        "libx264",
        {"x264-params": f"{_X264}:interlaced=1", "flags": "+ildct+ilme"},
        access=Access.DEMUX,
        verified=True,
        keys=4,
    ),
    "h264 intra refresh": Kind(
        "a.mp4", "libx264", {"x264-params": f"{_X264}:intra-refresh=1"}, verified=True, keys=1
    ),
    "h264 slices": Kind("a.mkv", "libx264", {"x264-params": f"{_X264}:slices=4"}, keys=4),
    "h264 4:2:2": Kind("a.mkv", "libx264", {"x264-params": _X264}, "yuv422p", keys=4),
    "h264 10 bits": Kind("a.mov", "libx264", {"x264-params": _X264}, "yuv420p10le", keys=4),
    "h264 gray": Kind("a.mov", "libx264", {"x264-params": _X264}, "gray", keys=4),
    "hevc open": Kind(
        "a.mkv", "libx265", {"x265-params": "keyint=12:log-level=none:bframes=3"}, keys=4
    ),
    "hevc layers": Kind(
        "a.mp4",
        "libx265",
        {"x265-params": "keyint=12:log-level=none:temporal-layers=2:bframes=3:b-adapt=0"},
        keys=4,
    ),
    "hevc stream": Kind(
        "a.hevc", "libx265", {"x265-params": "keyint=12:log-level=none"}, verified=True, keys=4
    ),
    "vp8": Kind("a.webm", "libvpx", {"auto-alt-ref": "1", "lag-in-frames": "16", "g": "12"}),
    "vp9 ivf": Kind("a.ivf", "libvpx-vp9", {"lag-in-frames": "16", "g": "12"}),
    "vp9 4:4:4": Kind("a.webm", "libvpx-vp9", {"lag-in-frames": "0", "g": "12"}, "yuv444p"),
    "mpeg4": Kind("a.mp4", "mpeg4", {"g": "12", "bf": "2"}, keys=4),
    "mpeg4 avi": Kind("a.avi", "mpeg4", {"g": "12", "bf": "2"}, keys=4),
    "mpeg4 stream": Kind("a.m4v", "mpeg4", {"g": "12"}),
    "mpeg2 transport": Kind("a.ts", "mpeg2video", _MPEG2, access=Access.DEMUX, keys=4),
    "mpeg2 program": Kind("a.mpg", "mpeg2video", _MPEG2, access=Access.DEMUX, keys=4),
    "mpeg1 stream": Kind("a.m1v", "mpeg1video", _MPEG2, keys=4),
    "ffv1": Kind("a.mkv", "ffv1", {"g": "12"}, keys=4),
    "prores": Kind("a.mov", "prores_ks", {}, "yuv422p10le", keys=40),
    "mjpeg": Kind("a.mov", "mjpeg", {}, "yuvj420p", keys=40),
    "png": Kind("a.mov", "png", {}, "rgb24", keys=40),
    "png deep": Kind("a.mov", "png", {}, "rgb48be", keys=40),
    "png gray": Kind("a.mov", "png", {}, "gray", keys=40),
    "png avi": Kind("a.avi", "png", {}, "rgba", keys=40),
    "tiff": Kind("a.mov", "tiff", {}, "rgb24", verified=True, keys=40),
    "qtrle": Kind("a.mov", "qtrle", {"g": "12"}, "rgb24", access=Access.SEQUENTIAL, verified=True),
    "raw": Kind("a.avi", "rawvideo", {}, keys=40),
    "packed raw": Kind("a.mov", "rawvideo", {}, "yuyv422", keys=40),
}


@pytest.mark.parametrize("name", one_in(4, _KINDS))
def test_single_frames_equal_a_sequential_decode(name: str, tmp_path: Path) -> None:
    kind = _KINDS[name]
    path = make_clip(
        tmp_path / kind.file, kind.codec, options=kind.options, pixel_format=kind.pixel_format
    )
    found = examine(path)
    assert (found.access, found.verified) == (kind.access, kind.verified), found.notes
    if kind.keys is not None:
        assert int((found.columns.flags & PacketFlag.KEY != 0).sum()) == kind.keys
    assert_exact(path, found, pyav_checksums(path))


@pytest.mark.parametrize("name", one_in(3, CLIPS))
def test_clips_have_their_encoded_frames_and_times(name: str) -> None:
    path = FOLDER / name
    truth = GroundTruth.load(path)
    found = examine(path)
    assert len(found.order) == truth.frames
    if truth.pts is not None:
        assert found.media.time_base == truth.time_base
        assert tuple(found.columns.pts[found.order].tolist()) == truth.pts
    assert_exact(path, found, pyav_checksums(path))

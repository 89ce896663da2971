"""Containers and codecs of all kinds: each frame alone is that of a decode in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sample_videos import CLIPS, FOLDER, GroundTruth
from tests.codecs.making import make_clip
from tests.codecs.reference import assert_exact, pyav_checksums
from tests.selection import one_in
from vfsd.codecs.probing.probe import examine
from vfsd.core.frame_table_pages import PacketFlag
from vfsd.core.model import Access


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


@pytest.mark.parametrize("name", one_in(2, _KINDS))
def test_each_frame_alone_is_that_of_a_decode_in_order(name: str, tmp_path: Path) -> None:
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
def test_clips_have_the_frames_and_times_that_they_were_made_with(name: str) -> None:
    path = FOLDER / name
    truth = GroundTruth.load(path)
    found = examine(path)
    assert len(found.order) == truth.frames
    if truth.pts is not None:
        assert found.media.time_base == truth.time_base
        assert tuple(found.columns.pts[found.order].tolist()) == truth.pts
    assert_exact(path, found, pyav_checksums(path))

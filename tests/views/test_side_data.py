"""Side data of frames in views: carried by the header, or reported as lost."""

from __future__ import annotations

import json
import struct
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from tests.support.selection import one_in
from tests.support.side_data_clips import noisy_clip, spherical, with_box
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.codecs.containers.tracks import make_box, make_full_box
from vfsd.codecs.frames.planes import plane_samples
from vfsd.codecs.inventory.file_inventory import take_inventory
from vfsd.codecs.probing.probe import examine
from vfsd.disk.checksums import MediaSource

ENTRY = "moov/trak/mdia/minf/stbl/stsd/avc1"
MASTERING = struct.pack(
    ">8H2I", 13250, 34500, 7500, 3000, 34000, 16000, 15635, 16450, 10_000_000, 50
)
BOXES = {
    "mastering display": make_box(b"mdcv", MASTERING),
    "content light level": make_box(b"clli", struct.pack(">HH", 1000, 400)),
    "stereo 3D mode": make_full_box(b"st3d", 0, 0, b"\2"),
    "spherical projection": spherical(),
    "Dolby Vision configuration": make_box(
        b"dvvC", bytes.fromhex("0100122d2000000000000000000000000000000000000000")
    ),
}


@pytest.fixture
def video(store: Store, tmp_path: Path) -> Video:
    path = noisy_clip(tmp_path / "a.mp4", sound=False)
    for added in BOXES.values():
        with_box(path, ENTRY, added)
    return store.ingest(path)


def marks(path: Path) -> dict[str, str]:
    return dict(examine(path).media.marks or {})


def seen(video: Video, name: str, folder: Path) -> Path:
    """A view as a file."""
    path = folder / name.replace("/", "_").replace("=", "_")
    with video.views.open(name) as file:
        path.write_bytes(file.read())
    return path


def test_side_data_is_found(video: Video) -> None:
    found = video.original.media.marks
    assert found is not None
    assert set(found) == set(BOXES)
    assert found["mastering display"] == MASTERING.hex()
    assert found["stereo 3D mode"] == "side by side"


@pytest.mark.parametrize("name", ["full.mp4", "full.mkv"])
def test_copies_carry_side_data(video: Video, tmp_path: Path, name: str) -> None:
    copy = seen(video, name, tmp_path)
    assert video.views.explain(name).made == "copied"
    assert marks(copy) == dict(video.original.media.marks or {})
    assert video.views.explain(name).lost is None
    with av.open(str(copy)) as opened:
        assert len(list(opened.decode(video=0))) == 10


@pytest.mark.parametrize("name", ["codec=h264,size=48x40.mp4", "codec=ffv1.mkv"])
def test_encodings_carry_side_data_except_dolby_vision(
    video: Video, tmp_path: Path, name: str
) -> None:
    made = seen(video, name, tmp_path)
    expected = dict(video.original.media.marks or {})
    del expected["Dolby Vision configuration"]
    assert marks(made) == expected
    assert video.views.explain(name).lost == "Dolby Vision configuration of its pictures"


def test_regions_have_no_projection(video: Video, tmp_path: Path) -> None:
    name = "roi=48x40+0+0,codec=h264.mp4"
    made = seen(video, name, tmp_path)
    assert set(marks(made)) == {"mastering display", "content light level"}
    lost = video.views.explain(name).lost or ""
    assert "spherical projection" in lost
    assert "stereo 3D mode" in lost


def test_formats_without_a_header_report_loss(video: Video) -> None:
    lost = video.views.explain("full.h264").lost or ""
    assert all(name in lost for name in BOXES)


def test_info_reports_loss_in_views(video: Video, tmp_path: Path) -> None:
    told: dict[str, Any] = json.loads(seen(video, "info.json", tmp_path).read_text())
    assert told["media"]["marks"] == sorted(BOXES)
    assert told["lost_in_views"]["copied mp4"] == []
    assert told["lost_in_views"]["encoded mkv"] == ["Dolby Vision configuration"]


def test_loss_of_alpha_is_reported(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libvpx-vp9", rate=25, options={"cpu-used": "8"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuva420p"
        for _ in range(3):
            out.mux(stream.encode(av.VideoFrame(96, 64, "yuva420p")))
        out.mux(stream.encode(None))
    video = store.ingest(path)
    for name in ("full.mkv", "codec=ffv1.mkv"):
        assert "alpha channel" in (video.views.explain(name).lost or "")
    copy = seen(video, "full.mkv", tmp_path)
    with MediaSource(copy) as source:
        assert not [
            name for name in take_inventory(source, "matroska", 0) if "BlockAdditional" in name
        ]


@pytest.mark.parametrize(
    ("encoder", "pixels", "suffix"),
    [("ffv1", "yuva420p", "mkv"), ("png", "rgba", "mov"), ("prores_ks", "yuva444p10le", "mov")],
)
def test_loss_of_alpha_in_samples_is_reported(
    store: Store, tmp_path: Path, encoder: str, pixels: str, suffix: str
) -> None:
    path = tmp_path / f"a.{suffix}"
    with av.open(str(path), "w") as out:
        stream = out.add_stream(encoder, rate=25)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 96, 64, pixels
        for _ in range(3):
            out.mux(stream.encode(av.VideoFrame(96, 64, pixels)))
        out.mux(stream.encode(None))
    video = store.ingest(path)
    for name in ("codec=h264.mp4", "codec=mjpeg.mkv", "full.y4m", "full.rgb"):
        assert "alpha channel" in (video.views.explain(name).lost or ""), name
    assert "alpha" not in (video.views.explain("size=48x32,codec=ffv1.mkv").lost or "")
    told: dict[str, Any] = json.loads(seen(video, "info.json", tmp_path).read_text())
    assert told["lost_in_views"]["encoded mkv"] == ["alpha channel"]
    assert told["lost_in_views"]["copied mkv"] == []


@pytest.mark.parametrize(
    ("encoder", "pixels", "suffix", "layout"),
    one_in(
        2,
        [
            ("ffv1", "yuva420p", "mkv", "yuva420p"),
            ("ffv1", "yuva422p10le", "mkv", "yuva422p10le"),
            ("ffv1", "gbrap12le", "mkv", "gbrap12le"),
            ("png", "rgba", "mov", "bgra"),
            ("png", "rgba64be", "mov", "gbrap16le"),
            ("qtrle", "argb", "mov", "bgra"),
            ("prores_ks", "yuva444p10le", "mov", "yuva444p12le"),
        ],
    ),
)
def test_lossless_encodings_carry_alpha(
    store: Store, tmp_path: Path, encoder: str, pixels: str, suffix: str, layout: str
) -> None:
    path = tmp_path / f"a.{suffix}"
    rng = np.random.default_rng(3)
    with av.open(str(path), "w") as out:
        stream = out.add_stream(encoder, rate=25)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 96, 64, pixels
        for _ in range(3):
            noise = rng.integers(0, 256, (64, 96, 4), np.uint8)
            out.mux(
                stream.encode(av.VideoFrame.from_ndarray(noise, "rgba").reformat(format=pixels))
            )
        out.mux(stream.encode(None))
    video = store.ingest(path)
    for name in (
        "fps=25,codec=ffv1.mkv",
        "roi=48x40+10+8,codec=ffv1.mkv",
        "roi=48x40+10+8,size=24x20,psnr=20,codec=ffv1.mkv",
    ):
        assert "alpha" not in (video.views.explain(name).lost or ""), name
        made = seen(video, name, tmp_path)
        with av.open(str(path)) as before, av.open(str(made)) as after:
            for one, other in zip(before.decode(video=0), after.decode(video=0), strict=True):
                assert other.format.name == layout
                shown = opacity(other)
                if "size=" in name:
                    assert shown.std() > 0.1
                    continue
                expected = opacity(one)
                if "roi=" in name:
                    expected = expected[8:48, 10:58]
                assert np.array_equal(shown, expected)


@pytest.mark.parametrize("is_transparent", [False, True])
def test_palette_with_alpha(store: Store, tmp_path: Path, is_transparent: bool) -> None:
    """The palette of a PNG picture has alpha values in a chunk of its own, tRNS."""
    path = tmp_path / "a.mov"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("png", rate=25)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "pal8"
        for number in range(3):
            packet = av.Packet(palette_png(96, 64, number, is_transparent=is_transparent))
            packet.stream, packet.time_base = stream, Fraction(1, 25)
            packet.pts = packet.dts = number
            packet.is_keyframe = True
            out.mux(packet)
    video = store.ingest(path)
    assert ("alpha channel" in (video.views.explain("full.mp4").lost or "")) == is_transparent
    assert "alpha" not in (video.views.explain("fps=25,codec=ffv1.mkv").lost or "")
    made = seen(video, "size=96x64,codec=ffv1.mkv", tmp_path)
    with av.open(str(path)) as before, av.open(str(made)) as after:
        for one, other in zip(before.decode(video=0), after.decode(video=0), strict=True):
            assert other.format.name == ("bgra" if is_transparent else "bgr0")
            channels = 4 if is_transparent else 3
            expected, got = (frame.to_ndarray(format="rgba") for frame in (one, other))
            assert np.array_equal(got[..., :channels], expected[..., :channels])


def palette_png(width: int, height: int, shift: int, *, is_transparent: bool) -> bytes:
    """A PNG picture of four colors; one is transparent and one half transparent if asked for."""
    rows = (np.add.outer(np.arange(height), np.arange(width)) + shift) % 4
    data = zlib.compress(np.pad(rows.astype(np.uint8), ((0, 0), (1, 0))).tobytes())
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes((255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9))),
        *([(b"tRNS", bytes((128, 255, 0, 255)))] if is_transparent else []),
        (b"IDAT", data),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def opacity(frame: av.VideoFrame) -> npt.NDArray[np.float64]:
    """The alpha channel of a frame, from 0 to 1."""
    alpha = next(one for one in frame.format.components if one.is_alpha)
    if frame.format.is_planar:
        samples = plane_samples(frame)[3]
    else:
        form = frame.to_ndarray(format="rgba64le" if alpha.bits > 8 else "rgba")
        samples = form[..., 3]
    highest: int = (1 << alpha.bits) - 1
    return samples.astype(np.float64) / highest


@pytest.mark.parametrize("name", ["full.mkv", "codec=h264.mkv", "codec=h264.mp4"])
def test_field_order_is_carried(store: Store, tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.mkv"
    options = {"flags": "+ildct+ilme", "x264-params": "tff=1"}
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=25, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for _ in range(5):
            out.mux(stream.encode(av.VideoFrame(96, 64, "yuv420p")))
        out.mux(stream.encode(None))
    video = store.ingest(path)
    before = dict(video.original.media.marks or {})
    assert before["field order"] == "top field first"
    assert marks(seen(video, name, tmp_path)).get("field order") == before["field order"]


def test_loss_of_streams_and_tags_is_reported(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "b.mkv"
    with (
        av.open(str(noisy_clip(tmp_path / "a.mkv", sound=False))) as source,
        av.open(str(path), "w") as target,
    ):
        target.metadata["title"] = "a street"
        copy = target.add_stream_from_template(source.streams.video[0])
        target.add_attachment("notes.txt", "text/plain", b"words")
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = copy
                target.mux(packet)
    lost = store.ingest(path).views.explain("full.mkv").lost or ""
    assert "stream 1 (attachment" in lost
    assert "title" in lost

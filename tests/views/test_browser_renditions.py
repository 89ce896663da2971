"""Browser renditions: views copy their packets, and `playable` chooses between them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.clips import make_clip
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.bitstreams import nal
from vfsd.core.model import Segment, psnr_from_mse
from vfsd.derive.rendition_plan import browser_losses
from vfsd.derive.tile_encoder import TileSettings
from vfsd.errors import UsageError

VIEW = "size=160x0,codec=h264.mp4"


@pytest.fixture
def video(store: Store) -> Video:
    return store.ingest(FOLDER / "traffic.mp4")  # 320x240, 120 frames, 30 per second


def units(packet: bytes, prefix: int) -> list[bytes]:
    return [packet[start:end] for start, end in nal.nal_units(packet, prefix)]


def stored_units(video: Video, segments: list[Segment]) -> list[list[bytes]]:
    packs = context_of(video).tools.packs
    return [
        units(packet, 0)
        for segment in segments
        for packet in packs.payloads(segment, 0, len(segment.frames))
    ]


def packets_of(data: bytes) -> tuple[list[list[bytes]], list[bool], list[float]]:
    """The NAL units of each packet of an mp4, whether it is a key packet, and its time."""
    with av.open(io.BytesIO(data), "r") as container:
        packets = [one for one in container.demux(container.streams.video[0]) if one.size]
        return (
            [units(bytes(one), 4) for one in packets],
            [one.is_keyframe for one in packets],
            [float((one.pts or 0) * one.time_base) for one in packets],
        )


def planes_of(data: bytes) -> list[Any]:
    """Y, U and V of all frames, in 4:2:0 with 8 bits."""
    with av.open(io.BytesIO(data), "r") as container:
        frames = [frame.to_ndarray() for frame in container.decode(video=0)]
    rows = frames[0].shape[0] * 2 // 3
    whole = np.stack(frames)
    return [whole[:, :rows], *np.split(whole[:, rows:], 2, axis=1)]


def likeness(one: bytes, other: bytes) -> float:
    """The lowest dB of a plane."""
    pairs = zip(planes_of(one), planes_of(other), strict=True)
    return min(psnr_from_mse(float(((a - b.astype(float)) ** 2).mean()), 255) for a, b in pairs)


def test_view_copies_the_packets(video: Video) -> None:
    assert video.views.explain(VIEW).made == "encoded"
    made = video.renditions.browser(160)
    found = video.views.explain(VIEW)
    assert (found.made, found.why) == ("copied", None)
    assert {step.does for step in found.steps} == {"copy"}
    assert found.psnr == min(cell.planes for one in made for cell in one.cells)
    data = video.views.open(VIEW).read()
    packets, keys, times = packets_of(data)
    assert packets == stored_units(video, made)
    assert [place for place, is_key in enumerate(keys) if is_key] == [0, 60]
    assert times == pytest.approx(list(video.read(size=16).seconds))
    mute = len(video.views.open("size=160x0,sound=no.mp4").read())
    assert mute < 1.2 * sum(one.size for one in made)
    assert likeness(data, video.views.open("size=160x0.y4m").read()) > 30


def test_other_views_say_why_they_are_encoded(video: Video) -> None:
    video.renditions.browser(160, span=(0, 2))
    assert video.views.explain("t=0-2,size=160x0.mp4").made == "copied"
    assert video.views.explain("t=0-1.5,size=160x0.mkv").made == "copied"
    for name, why in (
        ("t=0.5-2,size=160x0.mp4", "it begins between two key pictures"),
        ("size=160x0.mp4", "its browser rendition lacks frame 60"),
        ("t=0-2,size=160x0,psnr=60.mp4", "lacks frame 0"),
    ):
        found = video.views.explain(name)
        assert found.made == "encoded"
        assert why in (found.why or "")


def test_headers_do_not_depend_on_the_quality(video: Video) -> None:
    for span, quality in (((0, 2), 18), ((2, 4), 34)):
        video.renditions.make(160, span=span, settings=TileSettings("web", quality=quality))
    data = video.views.open("size=160,codec=h264.mp4").read()
    assert video.views.explain("size=160,codec=h264.mp4").made == "copied"
    assert len(planes_of(data)[0]) == 120


def test_rotation_stays_in_the_header(store: Store, tmp_path: Path) -> None:
    video = store.ingest(FOLDER / "portrait.mp4")
    width = video.original.media.display_width // 2
    video.renditions.browser(width)
    name = f"size={width}x0,codec=h264.mp4"
    assert video.views.explain(name).made == "copied"
    assert "rotated" in (video.views.explain(f"size={width}x0,codec=h264.mkv").why or "")
    path = tmp_path / "copy.mp4"
    path.write_bytes(video.views.open(name).read())
    copied = store.ingest(path)
    seen, wanted = copied.read(format="gray").data, video.read(size=(width, 0), format="gray").data
    assert seen.shape == wanted.shape
    assert psnr_from_mse(float(((seen - wanted.astype(float)) ** 2).mean()), 255) > 28


@pytest.mark.parametrize("pixels", ["yuv420p10le", "yuvj422p", "yuv444p"])
def test_other_samples_are_converted(store: Store, tmp_path: Path, pixels: str) -> None:
    path = make_clip(tmp_path / "clip.mp4", "libx264", pixel_format=pixels, options={"crf": "10"})
    video = store.ingest(path)
    video.verify()
    encoded = video.views.playable()
    assert encoded.origin == "encoded"
    video.renditions.browser(video.original.media.width)
    chosen = video.views.playable()
    assert (chosen.origin, chosen.name) == ("rendition", "codec=h264,pix=yuv420p.mp4")
    assert chosen.losses == tuple(browser_losses(video.original.media))
    assert chosen.losses
    data = video.views.open(chosen.name).read()
    with av.open(io.BytesIO(data), "r") as container:
        assert container.streams.video[0].codec_context.pix_fmt in ("yuv420p", "yuvj420p")
    assert likeness(data, video.views.open("pix=yuv420p.y4m").read()) > 30
    # Reads decode the original: a rendition with other samples has no known quality for them.
    assert video.explain(frames=range(2)).sources[0].kind == "original"


def test_playable_prefers_the_original(video: Video, store: Store) -> None:
    assert (video.views.playable().name, video.views.playable().origin) == ("full.mp4", "original")
    video.renditions.browser(160)
    assert video.views.playable().origin == "original"
    other = store.ingest(FOLDER / "av1.mp4")
    assert other.views.playable(["h264", "av1"]).origin == "original"
    assert other.views.playable().origin == "encoded"
    other.renditions.browser(160)
    found = other.views.playable(["h264", "hevc"])
    assert (found.origin, found.codec, found.size[0]) == ("rendition", "h264", 160)
    assert other.views.explain(found.name).made == "copied"
    for wrong in ([], ["vp8"], ["vp9"]):
        with pytest.raises(UsageError, match="can must"):
            other.views.playable(wrong)

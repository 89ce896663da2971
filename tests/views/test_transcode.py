"""Encoded views: the right frames at the right times, within their reserved bytes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from sample_videos import FOLDER, Scene, read_frame_number
from tests.support.stores import new_store
from tests.views.conftest import Shelf, decoded
from tests.views.test_players import psnr
from vfsd.api.video import context_of
from vfsd.codecs.containers.muxers import Fmp4Muxer, encoder_packet_format
from vfsd.codecs.containers.tracks import PacketTimes, VideoTrack, overhead
from vfsd.codecs.encoding.encoder import (
    WORST_QUALITY,
    EncoderSettings,
    encode_pictures,
    parameter_sets,
)
from vfsd.errors import UsageError
from vfsd.views import Views, transcode, view_slots
from vfsd.views.transcode import SegmentedEncode
from vfsd.views.view_slots import DEFAULT_QUALITY, gray_segment_size


def shown(data: bytes) -> list[Fraction]:
    return [(frame.pts or 0) * (frame.time_base or Fraction(0)) for frame in decoded(data)]


def numbers(data: bytes) -> list[int]:
    pictures = (frame.to_ndarray(format="rgb24") for frame in decoded(data))
    return [read_frame_number(picture.astype(np.uint8)) for picture in pictures]


def test_region_is_cut_at_exact_pixels(shelf: Shelf) -> None:
    for path, region in (
        ("roi=100x80+30+40.mp4", (30, 40, 130, 120)),
        ("roi=101x81+31+41.mp4", (31, 41, 131, 121)),
        ("roi=160x120+160+120.hevc", (160, 120, 320, 240)),
    ):
        wanted = shelf.video("traffic.mp4").read(region=region).data
        for frame, right in zip(decoded(shelf.read("traffic.mp4", path)), wanted, strict=True):
            assert psnr(frame.to_ndarray(format="rgb24"), right) > 30


def test_rotated_video_is_encoded_upright(shelf: Shelf) -> None:
    video = shelf.video("portrait.mp4")
    (first, *_) = decoded(shelf.read("portrait.mp4", "size=120x0.mkv"))
    assert (first.width, first.height) == (120, 160)
    assert (video.width, video.height) == (240, 320)
    assert numbers(shelf.read("portrait.mp4", "full.mkv")) == list(range(len(video)))


def test_span_between_key_frames_is_encoded(shelf: Shelf) -> None:
    data = shelf.read("traffic.mp4", "t=1.5-2.5.mp4")
    assert numbers(data) == list(range(45, 75))
    assert shown(data) == [Fraction(k, 30) for k in range(30)]


def test_span_at_key_frames_is_copied(shelf: Shelf) -> None:
    data = shelf.read("traffic.mp4", "t=1-3.mp4")
    assert numbers(data) == list(range(30, 90))
    assert shown(data) == [Fraction(k, 30) for k in range(60)]
    source = FOLDER.joinpath("traffic.mp4").read_bytes()
    video = shelf.video("traffic.mp4")
    entry = context_of(video).table.frame(30)
    assert source[entry.position : entry.position + entry.size] in data


def test_rate_samples_the_displayed_frame(shelf: Shelf) -> None:
    data = shelf.read("traffic.mp4", "fps=7.mp4")
    assert numbers(data) == [k * 30 // 7 for k in range(28)]
    assert shown(data) == [Fraction(k, 7) for k in range(28)]
    faster = shelf.read("traffic.mp4", "t=0-0.5,fps=60.mkv")
    assert numbers(faster) == [k // 2 for k in range(30)]


def test_steps_keep_frame_times(shelf: Shelf) -> None:
    data = shelf.read("traffic.mp4", "frames=5-50-10.mp4")
    assert numbers(data) == [5, 15, 25, 35, 45]
    assert shown(data) == [Fraction(k, 3) for k in range(5)]


def test_irregular_times_are_kept(shelf: Shelf) -> None:
    video = shelf.video("variable-rate.mkv")
    data = shelf.read("variable-rate.mkv", "frames=7-60,size=160x120.mp4")
    pts = context_of(video).table.pts(7, 60)
    assert shown(data) == [Fraction(int(p - pts[0]), 1000) for p in pts]


def test_hidden_frames_stay_hidden(shelf: Shelf) -> None:
    video = shelf.video("edit-list.mp4")
    assert numbers(shelf.read("edit-list.mp4", "full.mp4")) == list(range(7, 7 + len(video)))


def test_colours_are_written_to_the_stream(shelf: Shelf) -> None:
    (first, *_) = decoded(shelf.read("mjpeg.avi", "frames=0-5.h264"))
    assert first.format.name == "yuvj420p"  # full range
    assert first.colorspace == 5  # bt470bg


def test_sizes_too_small_for_the_encoder_are_refused(shelf: Shelf) -> None:
    assert shelf.size("traffic.mp4", "roi=2x2+0+0.h264") > 0
    with pytest.raises(UsageError):
        shelf.size("traffic.mp4", "roi=8x8+0+0.hevc")


def test_same_bytes_from_another_cache(shelf: Shelf, fresh: Shelf) -> None:
    for path in ("t=0.5-2.mp4", "size=100x100.hevc", "t=0.3-1,fps=11.mkv"):
        assert shelf.read("traffic.mp4", path) == fresh.read("traffic.mp4", path)


@pytest.mark.thorough
def test_reserved_size_fits_gray_frames() -> None:
    """The coarsest encoding of any content fits as well."""
    for codec, least in (("h264", 2), ("hevc", 16), ("av1", 16), ("mjpeg", 2)):
        for width, height in ((least, least), (98, 34), (320, 240), (1920, 1080)):
            for count in (1, 8, 40):
                settings = EncoderSettings(codec, width, height, WORST_QUALITY[codec], Fraction(30))
                gray = np.full((height * 3 // 2, width), 128, np.uint8)
                size = sum(map(len, encode_pictures(settings, (gray for _ in range(count)))))
                sets = sum(len(unit) + 4 for unit in parameter_sets(settings))
                room = gray_segment_size(codec, width * height, np.array([count]))[0]
                assert size + sets < room + 24 * count


def test_too_small_slots_are_coarsened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_slots, "_SIZE_MARGIN", 0.12)
    with new_store(tmp_path / "store") as store:
        store.ingest(FOLDER / "traffic.mp4", "a.mp4")
        views = Views(store.parts, store.tools)
        tight = Shelf(store, views)
        data = tight.read("a.mp4", "codec=hevc.mp4")
        assert numbers(data) == list(range(120))
        monkeypatch.setattr(view_slots, "_SIZE_MARGIN", 0.0)
        hopeless = tight.read("a.mp4", "t=0.5-3.mp4")
        assert len(decoded(hopeless)) == 75
        views.close()


def test_large_first_packets_do_not_coarsen_a_segment() -> None:
    """The first packets of AV1 contain references for later frames."""
    scene = Scene(320, 240, frames=30, density=0.4, seed=5)
    pictures = [planes(scene.frame(index)) for index in range(30)]
    settings = EncoderSettings("av1", 320, 240, DEFAULT_QUALITY["av1"], Fraction(30))
    framing = encoder_packet_format("av1", parameter_sets(settings), stream=False)

    def packets(room: int) -> tuple[list[bytes], int]:
        return transcode._encode_packets(settings, framing, iter(pictures), 30, room, lambda: None)

    _, needed = packets(1 << 30)
    payloads, size = packets(needed)
    assert (len(payloads), size) == (30, needed)
    _, size = packets(needed // 2)
    assert 0.75 * needed < size < 1.6 * needed  # predicts the required quality


def planes(picture: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    return av.VideoFrame.from_ndarray(picture, format="rgb24").to_ndarray(format="yuv420p")


def test_second_encode_reuses_decoded_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded_for: list[int] = []
    decode = SegmentedEncode._decoded

    def counting(self: SegmentedEncode, first: int, *rest: Any) -> object:
        decoded_for.append(first)
        return decode(self, first, *rest)

    monkeypatch.setattr(SegmentedEncode, "_decoded", counting)
    monkeypatch.setattr(view_slots, "_SIZE_MARGIN", 0.3)
    with new_store(tmp_path / "store") as store:
        store.ingest(FOLDER / "traffic.mp4", "a.mp4")
        views = Views(store.parts, store.tools)
        assert numbers(Shelf(store, views).read("a.mp4", "codec=hevc.mp4")) == list(range(120))
        assert len(decoded_for) == len(set(decoded_for)) == 5
        decoded_for.clear()
        monkeypatch.setattr(transcode, "_PENDING_PICTURE_BYTES", 0)
        assert numbers(Shelf(store, views).read("a.mp4", "codec=hevc.mkv")) == list(range(120))
        assert len(decoded_for) > 5
        views.close()


def test_noise_after_a_black_key_frame_fits(tmp_path: Path) -> None:
    """The source's key frame says nothing about the following frames."""
    scene = Scene(frames=40, density=0.4, seed=9, noise=25.0)
    black = np.zeros((240, 320, 3), np.uint8)
    pictures = [black if index < 5 else scene.frame(index) for index in range(40)]
    (tmp_path / "noise.mp4").write_bytes(made(pictures, quality=30))
    with new_store(tmp_path / "store") as store:
        store.ingest(tmp_path / "noise.mp4", "a.mp4")
        views = Views(store.parts, store.tools)
        frames = decoded(Shelf(store, views).read("a.mp4", "t=0.1-.mp4"))
        wanted = store["a.mp4"].read(span=(0.1, None)).data
        for frame, right in zip(frames, wanted, strict=True):
            assert psnr(frame.to_ndarray(format="rgb24"), right) > 30
        views.close()


def made(pictures: Sequence[npt.NDArray[np.uint8]], *, quality: int) -> bytes:
    """An MP4 file of RGB frames at 30 fps, with one key frame."""
    height, width, _ = pictures[0].shape
    settings = EncoderSettings("h264", width, height, quality, Fraction(30))
    framing = encoder_packet_format("h264", parameter_sets(settings), stream=False)
    frames = (av.VideoFrame.from_ndarray(picture, format="rgb24") for picture in pictures)
    packets = [framing.convert(packet, False) for packet in encode_pictures(settings, frames)]
    count = len(packets)
    track = VideoTrack("h264", width, height, framing.configuration, Fraction(1, 30), count, count)
    muxer = Fmp4Muxer(track)
    shown = np.arange(count)
    times = PacketTimes(shown, np.ones(count, np.int64), shown, count, (shown == 0) * 1)
    size = overhead(muxer, times) + sum(map(len, packets))
    return muxer.header() + muxer.segment(0, times, packets, size)

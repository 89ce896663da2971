"""Encoders: one packet per frame, deterministic output, headers that fit all qualities."""

from __future__ import annotations

import dataclasses
import io
from fractions import Fraction
from typing import cast

import av
import cv2
import numpy as np
import numpy.typing as npt
import pytest
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from sample_videos import Scene
from tests.support.selection import one_in
from vfsd.codecs.bitstreams import nal
from vfsd.codecs.encoding.encoder import (
    WORST_QUALITY,
    EncoderSettings,
    encode_pictures,
    parameter_sets,
    require_encodable,
)
from vfsd.codecs.frames.planes import plane_samples
from vfsd.core.model import MediaInfo
from vfsd.errors import UsageError

SCENE = Scene(frames=12, density=0.3, pan=10, seed=4)
NAL_CODECS = ("h264", "hevc")
CODECS = (*NAL_CODECS, "av1", "mjpeg", "ffv1")
COARSER = ("h264", "hevc", "av1", "mjpeg")


def settings(codec: str, quality: int = 20, **more: str) -> EncoderSettings:
    return EncoderSettings(codec, 320, 240, quality, Fraction(30), **more)  # type: ignore[arg-type]


def pictures() -> list[av.VideoFrame]:
    return [
        av.VideoFrame.from_ndarray(SCENE.frame(index), format="rgb24").reformat(format="yuv420p")
        for index in range(SCENE.frames)
    ]


def decoded(codec: str, packets: list[bytes], sets: tuple[bytes, ...]) -> list[av.VideoFrame]:
    context = av.CodecContext.create({"av1": "libdav1d"}.get(codec, codec), "r")
    assert isinstance(context, VideoCodecContext)
    start = nal.START_CODE if codec in NAL_CODECS else b""
    context.extradata = b"".join(start + unit for unit in sets) or None
    context.width, context.height = 320, 240
    context.thread_count = 1
    frames: list[av.VideoFrame] = []
    for ordinal, data in enumerate(packets):
        packet = cast("av.Packet[VideoStream]", av.Packet(data))
        packet.pts = packet.dts = ordinal
        frames += context.decode(packet)
    return [*frames, *context.decode(None)]


@pytest.mark.parametrize("codec", CODECS)
def test_one_packet_per_frame_in_order(codec: str) -> None:
    chosen = settings(codec, 3 if codec == "mjpeg" else 20)
    packets = list(encode_pictures(chosen, pictures()))
    frames = decoded(codec, packets, parameter_sets(chosen))
    assert [frame.pts for frame in frames] == list(range(SCENE.frames))
    for frame, right in zip(frames, pictures(), strict=True):
        wanted = _jpeg_samples(right) if codec == "mjpeg" else right.to_ndarray()
        error = frame.to_ndarray().astype(float) - wanted
        if codec == "ffv1":
            assert not error.any()
            continue
        assert 10 * np.log10(255**2 / np.mean(error**2)) > 38


def _jpeg_samples(picture: av.VideoFrame) -> npt.NDArray[np.float64]:
    """Samples in full range of a frame in limited range."""
    samples = picture.to_ndarray().astype(float)
    height = picture.height
    samples[:height] = (samples[:height] - 16) * 255 / 219
    samples[height:] = (samples[height:] - 128) * 255 / 224 + 128
    return samples.clip(0, 255)


def test_jpeg_uses_standard_jpeg_colors() -> None:
    """JPEG readers ignore the source's color coding; without conversion, errors would be 10 levels
    or more."""
    rgb = np.full((240, 320, 3), (200, 80, 40), np.uint8)
    for space, number in (("bt709", 1), ("smpte170m", 5)):
        for color_range, told in (("limited", 1), ("full", 2)):
            picture = av.VideoFrame.from_ndarray(rgb, format="rgb24").reformat(
                format="yuv420p", dst_colorspace=number, dst_color_range=told
            )
            chosen = settings("mjpeg", 2, color_space=space, color_range=color_range)
            (packet,) = encode_pictures(chosen, [picture])
            seen = cv2.imdecode(np.frombuffer(packet, np.uint8), cv2.IMREAD_COLOR)
            assert seen is not None
            assert np.abs(seen[:, :, ::-1].astype(int) - rgb).max() <= 4


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1", "ffv1"])
def test_ten_bits_are_kept(codec: str) -> None:
    chosen = settings(codec, 10, pixel_format="yuv420p10")
    steps = np.add.outer(np.arange(240), np.arange(320)).astype(np.uint16) + 200
    samples = np.full((360, 320), 512, np.uint16)
    samples[:240] = steps
    (frame, *_) = decoded(
        codec, list(encode_pictures(chosen, [samples] * 3)), parameter_sets(chosen)
    )
    assert frame.format.name == "yuv420p10le"
    error = frame.to_ndarray()[:240].astype(float) - steps
    assert np.abs(error).max() < 6
    # of 558 levels; eight bits would have 140
    assert len(np.unique(frame.to_ndarray()[:240])) > 400


@pytest.mark.parametrize("layout", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10"])
def test_ffv1_keeps_every_sample(layout: str) -> None:
    picture = pictures()[0].reformat(format={"yuv420p10": "yuv420p10le"}.get(layout, layout))
    planes = plane_samples(picture)
    flat = np.concatenate([plane.reshape(-1) for plane in planes])
    chosen = settings("ffv1", 0, pixel_format=layout)
    (frame,) = decoded("ffv1", list(encode_pictures(chosen, [flat])), parameter_sets(chosen))
    for plane, right in zip(plane_samples(frame), planes, strict=True):
        np.testing.assert_array_equal(plane, right)


@pytest.mark.parametrize("codec", NAL_CODECS)
def test_only_the_first_packet_is_a_key_packet(codec: str) -> None:
    kinds = [
        [nal.unit_type(codec, packet[a:b]) for a, b in nal.nal_units(packet, 0)]
        for packet in encode_pictures(settings(codec), pictures())
    ]
    key = {5} if codec == "h264" else {19, 20}
    assert all(len(units) == 1 for units in kinds)
    assert [bool(key & set(units)) for units in kinds] == [True] + [False] * (SCENE.frames - 1)


@pytest.mark.parametrize("codec", one_in(3, CODECS))
def test_output_is_deterministic_for_planes_and_frames(codec: str) -> None:
    first = list(encode_pictures(settings(codec), pictures()))
    assert list(encode_pictures(settings(codec), pictures())) == first
    planes = [picture.to_ndarray() for picture in pictures()]
    assert list(encode_pictures(settings(codec), planes)) == first


@pytest.mark.parametrize("codec", COARSER)
def test_parameter_sets_are_independent_of_quality(codec: str) -> None:
    sets = parameter_sets(settings(codec))
    sizes = []
    for quality in (10, 20, 25, WORST_QUALITY[codec]):
        assert parameter_sets(settings(codec, quality)) == sets
        packets = list(encode_pictures(settings(codec, quality), pictures()))
        sizes.append(sum(map(len, packets)))
        assert len(decoded(codec, packets, sets)) == SCENE.frames
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("codec", [*NAL_CODECS, "av1"])
def test_colours_are_written_to_the_stream(codec: str) -> None:
    chosen = settings(
        codec,
        color_range="full",
        color_space="bt709",
        color_primaries="bt709",
        color_transfer="iec61966-2-1",
    )
    (frame, *_) = decoded(codec, list(encode_pictures(chosen, pictures())), parameter_sets(chosen))
    told = (frame.color_range, frame.colorspace, frame.color_primaries, frame.color_trc)
    assert told == (2, 1, 1, 13)


RATES = (Fraction(25), Fraction(1, 1001), Fraction(30000, 1001), Fraction(1000), Fraction(997, 13))


@pytest.mark.parametrize("codec", one_in(4, NAL_CODECS))
@pytest.mark.parametrize("rate", RATES)
def test_frame_rate_is_written_and_changes_nothing_else(codec: str, rate: Fraction) -> None:
    chosen = dataclasses.replace(settings(codec), rate=rate)
    packets = list(encode_pictures(chosen, pictures()))
    assert packets == list(encode_pictures(settings(codec), pictures()))
    sets = parameter_sets(chosen)
    assert len(decoded(codec, packets, sets)) == SCENE.frames
    data = b"".join(nal.START_CODE + unit for unit in sets) + b"".join(packets)
    with av.open(io.BytesIO(data), mode="r", format=codec) as opened:
        assert opened.streams.video[0].codec_context.framerate == rate


def test_no_frames_give_no_packets() -> None:
    assert list(encode_pictures(settings("h264"), [])) == []


def test_unsupported_sizes_are_refused() -> None:
    for codec, width, height in (("h264", 1, 2), ("hevc", 14, 16), ("h264", 16386, 2)):
        with pytest.raises(UsageError):
            require_encodable(codec, width, height)
    with pytest.raises(UsageError):
        parameter_sets(EncoderSettings("h264", 33, 32, 20, Fraction(30)))


def test_matrix_of_converted_rgb_is_written() -> None:
    media = MediaInfo(
        *("matroska", "ffv1", None, 64, 64, "gbrp", Fraction(1, 25), None),
        color_range="full",
        color_space="rgb",
    )
    chosen = settings("h264").with_colors_of(media)
    assert (chosen.color_range, chosen.color_space) == ("full", "smpte170m")

"""The description of a video stream, put together from its container and its first picture."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import av
from av.container import InputContainer
from av.stream import Disposition, Stream
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams.cicp import PRIMARIES, RANGES, SPACES, TRANSFERS
from vfsd.codecs.containers.detect_container import Container
from vfsd.codecs.decoding.display_matrix import display_matrix
from vfsd.codecs.frames.pix_fmt_range import names_full_range
from vfsd.codecs.pyav import exact, readable_tags
from vfsd.core.model import MediaInfo, SideStream
from vfsd.errors import RefusedMediaError

_MAX_TAGS = 64
_MAX_TAG_LENGTH = 1000
_NOT_FILMED = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.still_image
_PROGRESSIVE = (0, 1)  # of AVFieldOrder: unknown, progressive


def choose_stream(opened: InputContainer, index: int | None = None) -> VideoStream:
    """The video stream that FFmpeg takes for the best, cover pictures aside; or that of `index`.

    Raises `RefusedMediaError` when there is none, or none that can be decoded.
    """
    videos = opened.streams.video
    filmed = [stream for stream in videos if not stream.disposition & _NOT_FILMED]
    if index is not None:
        there = ", ".join(str(stream.index) for stream in filmed)
        filmed = [stream for stream in filmed if stream.index == index]
        if not filmed:
            raise RefusedMediaError(
                f"stream {index} is not a video stream",
                hint=f"its video streams: {there}" if there else None,
            )
    if not filmed:
        if videos:
            raise RefusedMediaError("its only picture is a cover or a still image")
        if opened.streams.audio:
            raise RefusedMediaError("audio only")
        raise RefusedMediaError("the file has no video stream")
    best = opened.streams.best("video")
    stream = next(
        (one for one in filmed if best is not None and one.index == best.index), filmed[0]
    )
    if stream.codec_context is None:
        raise RefusedMediaError("its video codec is not known")
    if _codec_tag(stream.codec_context) in ("encv", "drmi"):
        raise RefusedMediaError("the video is encrypted")
    return stream


def describe(
    container: Container, opened: InputContainer, stream: VideoStream, frame: av.VideoFrame
) -> tuple[MediaInfo, list[str]]:
    """All that can be told before the frame table is known, and notes for people.

    `frame` is a picture as the stream's own decoder gives it.  Left at their defaults:
    `variable_rate` and `edit_list`.
    """
    context = stream.codec_context
    notes: list[str] = []
    rotation, mirrored = _orientation(frame, notes)
    full_range = names_full_range(frame.format.name)
    return MediaInfo(
        container=container.name,
        codec=context.codec.canonical_name,
        codec_tag=_codec_tag(context),
        profile=stream.profile,
        width=frame.width,
        height=frame.height,
        pixel_format=frame.format.name,
        time_base=exact(stream.time_base) or Fraction(1, 1_000_000),
        average_rate=exact(stream.average_rate),
        stream_index=stream.index,
        rotation=rotation,
        sample_aspect_ratio=exact(stream.sample_aspect_ratio) or exact(context.sample_aspect_ratio),
        color_range="full" if full_range else RANGES.get(frame.color_range),
        color_space=SPACES.get(frame.colorspace),
        color_primaries=PRIMARIES.get(frame.color_primaries),
        color_transfer=TRANSFERS.get(frame.color_trc),
        bit_depth=frame.format.components[0].bits,
        interlaced=frame.interlaced_frame or context.field_order not in _PROGRESSIVE,
        reorder_delay=context.reorder_depth,
        extradata=context.extradata or b"",
        side_streams=tuple(_side_streams(opened, stream)),
        tags=_tags(opened, stream),
        mirrored=mirrored,
    ), notes


def claimed_rates(stream: VideoStream) -> tuple[Fraction | None, ...]:
    """Frames per second as the codec's own timing and the demuxer's guess tell them."""
    told = (stream.codec_context.framerate, stream.base_rate)
    return tuple(map(exact, told))


def _codec_tag(context: VideoCodecContext) -> str:
    try:
        return context.codec_tag.rstrip("\0")
    except UnicodeDecodeError:
        return ""


def _orientation(frame: av.VideoFrame, notes: list[str]) -> tuple[int, bool]:
    """(clockwise degrees, whether it is mirrored before): what turns `frame` upright."""
    a, b, _, c, d, *_ = display_matrix(frame)
    determinant = a * d - b * c
    if not determinant:
        notes.append("the display matrix leaves no picture; it is shown as it is stored")
        return 0, False
    mirrored = determinant < 0
    if mirrored:
        a, b = -a, -b
    # As FFmpeg has it, which takes off by how much either side is scaled.
    turned = math.atan2(b / math.hypot(b, d), a / math.hypot(a, c))
    exact = round(math.degrees(turned)) % 360
    upright = (exact + 45) // 90 * 90 % 360
    if upright != exact:
        notes.append(f"turned by {exact} degrees; shown turned by {upright}")
    return upright, mirrored


def _side_streams(opened: InputContainer, kept: VideoStream) -> Iterator[SideStream]:
    for stream in opened.streams:
        if stream.index != kept.index:
            yield _side_stream(stream)


def _side_stream(stream: Stream) -> SideStream:
    context = stream.codec_context
    audio = context if stream.type == "audio" else None
    return SideStream(
        index=stream.index,
        kind="cover" if stream.disposition & _NOT_FILMED else stream.type,
        codec=context.codec.canonical_name if context is not None else "unknown",
        language=readable_tags(stream).get("language"),
        channels=getattr(audio, "channels", None),
        sample_rate=getattr(audio, "sample_rate", None),
    )


def _tags(opened: InputContainer, stream: VideoStream) -> dict[str, str]:
    tags = {**readable_tags(stream), **readable_tags(opened)}
    short = {k: v[:_MAX_TAG_LENGTH] for k, v in sorted(tags.items()) if v}
    return dict(list(short.items())[:_MAX_TAGS])

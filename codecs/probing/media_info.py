"""The description of a video stream from its container and its first picture.

Also reads the crop of MP4's clean aperture and Matroska's PixelCrop.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import av
from av.container import InputContainer
from av.stream import Disposition, Stream
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.containers.detect_container import Container
from vfsd.codecs.frames.color import MATRICES, PRIMARIES, RANGES, TRANSFERS
from vfsd.codecs.frames.planes import chroma_subsampling, names_full_range
from vfsd.codecs.inventory.matroska_elements import MatroskaElement, iter_elements
from vfsd.codecs.inventory.mp4_boxes import FileWindow, Mp4Box, iter_boxes
from vfsd.codecs.inventory.side_data import display_matrix, has_lcevc
from vfsd.codecs.pyav import exact_fraction, readable_tags
from vfsd.core.model import NO_CROP_MARGINS, CropMargins, MediaInfo, SideStream
from vfsd.disk.checksums import MediaSource
from vfsd.errors import RefusedMediaError

# Bytes of a VisualSampleEntry before its boxes (ISO/IEC 14496-12, 12.1.3).
_VIDEO_ENTRY = 78
_CLAP = 32
# Element IDs of RFC 9559, section 5.1.
_SEGMENT, _CLUSTER, _TRACKS, _ENTRY, _VIDEO = 0x18538067, 0x1F43B675, 0x1654AE6B, 0xAE, 0xE0
_LEFT, _TOP, _RIGHT, _BOTTOM = 0x54CC, 0x54BB, 0x54DD, 0x54AA


def with_container_crop(source: MediaSource, media: MediaInfo) -> MediaInfo:
    """Return `media`, which describes decoded pictures, with the crop of the container applied."""
    if media.container in ("mp4", "mov"):
        margins = _clean_aperture(FileWindow(source), media)
    elif media.container in ("matroska", "webm"):
        margins = _pixel_crop(FileWindow(source), media.stream_index)
    else:
        return media
    crop = _rounded_crop(margins, media)
    if crop == NO_CROP_MARGINS:
        return media
    left, top, right, bottom = crop
    width, height = media.width - left - right, media.height - top - bottom
    return replace(media, width=width, height=height, crop=crop)


def _rounded_crop(margins: CropMargins, media: MediaInfo) -> CropMargins:
    """Round to whole chroma samples; `NO_CROP_MARGINS` if nothing would remain."""
    across, down = chroma_subsampling(media.pixel_format)
    left, width = _rounded_side(margins[0], margins[2], media.width, across)
    top, height = _rounded_side(margins[1], margins[3], media.height, down)
    if width <= 0 or height <= 0:
        return NO_CROP_MARGINS
    return left, top, media.width - left - width, media.height - top - height


def _rounded_side(before: int, after: int, length: int, grid: int) -> tuple[int, int]:
    """Return (pixels cropped before, pixels kept)."""
    if before <= 0 and after <= 0:
        return 0, length
    kept = length - before - after
    return before // grid * grid, kept // grid * grid


def _clean_aperture(window: FileWindow, media: MediaInfo) -> CropMargins:
    for moov in _child_box(window, None, b"moov"):
        for number, trak in enumerate(_child_box(window, moov, b"trak")):
            if number == media.stream_index:
                box = _nested_box(window, trak, b"mdia", b"minf", b"stbl", b"stsd")
                return NO_CROP_MARGINS if box is None else _entry_aperture(window, box)
    return NO_CROP_MARGINS


def _entry_aperture(window: FileWindow, table: Mp4Box) -> CropMargins:
    """Return the crop of the first sample entry."""
    entry = next(iter_boxes(window, table.content + 8, table.end), None)
    if entry is None:
        return NO_CROP_MARGINS
    size = window.read(entry.content + 24, 4)
    for box in iter_boxes(window, entry.content + _VIDEO_ENTRY, entry.end):
        if box.kind == b"clap" and box.end - box.content >= _CLAP:
            width, height = (int.from_bytes(size[at : at + 2], "big") for at in (0, 2))
            data = window.read(box.content, _CLAP)
            across = _aperture_edges(data[:8] + data[16:24], width)
            down = _aperture_edges(data[8:16] + data[24:], height)
            if across is not None and down is not None:
                return across[0], down[0], across[1], down[1]
    return NO_CROP_MARGINS


def _aperture_edges(data: bytes, length: int) -> tuple[int, int] | None:
    """Return (pixels cropped before, pixels cropped after) for a size and an offset of the center.

    None if the result is not within the picture. `data` is four 32-bit numbers of a clap box
    (ISO/IEC 14496-12, 12.1.4).
    """
    over, under, offset_over, offset_under = (
        int.from_bytes(data[at : at + 4], "big", signed=True) for at in (0, 4, 8, 12)
    )
    if over <= 0 or under <= 0 or offset_under <= 0:
        return None
    half = (Fraction(over, under) - 1) / 2
    centre = Fraction(length - 1, 2) + Fraction(offset_over, offset_under)
    first, last = centre - half, centre + half
    if first < 0 or last > length - 1 or half < 0:
        return None
    return math.floor(first), length - 1 - math.floor(last)


def _nested_box(window: FileWindow, parent: Mp4Box, *path: bytes) -> Mp4Box | None:
    found: Mp4Box | None = parent
    for kind in path:
        found = found and next(_child_box(window, found, kind), None)
    return found


def _child_box(window: FileWindow, parent: Mp4Box | None, kind: bytes) -> Iterator[Mp4Box]:
    start, end = (0, window.size) if parent is None else (parent.content, parent.end)
    return (box for box in iter_boxes(window, start, end) if box.kind == kind)


def _pixel_crop(window: FileWindow, stream_index: int) -> CropMargins:
    for segment in iter_elements(window, 0, window.size):
        if segment.identifier != _SEGMENT:
            continue
        for part in iter_elements(window, segment.content, segment.end):
            if part.identifier == _CLUSTER and part.is_open:
                return NO_CROP_MARGINS  # a cluster of unknown size hides the rest
            if part.identifier == _TRACKS:
                return _track_crop(window, part, stream_index)
    return NO_CROP_MARGINS


def _track_crop(window: FileWindow, tracks: MatroskaElement, stream_index: int) -> CropMargins:
    inside = iter_elements(window, tracks.content, tracks.end)
    entries = [one for one in inside if one.identifier == _ENTRY]
    if stream_index >= len(entries):
        return NO_CROP_MARGINS
    entry = entries[stream_index]
    for video in iter_elements(window, entry.content, entry.end):
        if video.identifier == _VIDEO:
            margins = {
                one.identifier: int.from_bytes(
                    window.read(one.content, one.end - one.content), "big"
                )
                for one in iter_elements(window, video.content, video.end)
                if one.end - one.content <= 8
            }
            left, top, right, bottom = (
                margins.get(one, 0) for one in (_LEFT, _TOP, _RIGHT, _BOTTOM)
            )
            return left, top, right, bottom
    return NO_CROP_MARGINS


_MAX_TAGS = 64
_MAX_TAG_LENGTH = 1000
_RAW = frozenset({"h264", "hevc", "obu"})
"""Containers that have no rate of their own, only that of the stream in them."""

_NOT_FILMED = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.still_image
_PROGRESSIVE = (0, 1)  # AVFieldOrder: unknown, progressive


def choose_stream(opened: InputContainer, index: int | None = None) -> VideoStream:
    """Return the video stream with that index; None: FFmpeg's best one, cover pictures aside.

    Raises `RefusedMediaError` if there is none that can be decoded.
    """
    videos = opened.streams.video
    filmed = [stream for stream in videos if not stream.disposition & _NOT_FILMED]
    if index is not None:
        there = ", ".join(str(stream.index) for stream in filmed)
        filmed = [stream for stream in filmed if stream.index == index]
        if not filmed:
            raise RefusedMediaError(
                f"stream {index} is not a video stream",
                hint=f"video streams of the file: {there}" if there else None,
            )
    if not filmed:
        if videos:
            raise RefusedMediaError("the only picture is a cover or a still image")
        if opened.streams.audio:
            raise RefusedMediaError("audio only")
        raise RefusedMediaError("the file has no video stream")
    best = opened.streams.best("video")
    stream = next(
        (one for one in filmed if best is not None and one.index == best.index), filmed[0]
    )
    if stream.codec_context is None:
        raise RefusedMediaError("the video codec is unknown")
    if _codec_tag(stream.codec_context) in ("encv", "drmi"):
        raise RefusedMediaError("the video is encrypted")
    return stream


def describe_stream(
    container: Container, opened: InputContainer, stream: VideoStream, frame: av.VideoFrame
) -> tuple[MediaInfo, list[str]]:
    """Return all that is known before the frame table, and notes for users.

    `frame` is a picture from the decoder of the stream. `variable_rate` and `edit_list` keep their
    defaults.
    """
    context = stream.codec_context
    notes: list[str] = []
    rotation, mirrored = _orientation(frame, notes)
    if has_lcevc(frame):
        notes.append("LCEVC: the base layer is shown, without the enhancement layer")
    full_range = names_full_range(frame.format.name)
    return MediaInfo(
        container=container.name,
        codec=context.codec.canonical_name,
        codec_tag=_codec_tag(context),
        profile=stream.profile,
        width=frame.width,
        height=frame.height,
        pixel_format=frame.format.name,
        time_base=exact_fraction(stream.time_base) or Fraction(1, 1_000_000),
        average_rate=_average_rate(container, stream),
        stream_index=stream.index,
        rotation=rotation,
        sample_aspect_ratio=exact_fraction(stream.sample_aspect_ratio)
        or exact_fraction(context.sample_aspect_ratio),
        color_range="full" if full_range else RANGES.get(frame.color_range),
        color_space=MATRICES.get(frame.colorspace),
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


def _average_rate(container: Container, stream: VideoStream) -> Fraction | None:
    average = exact_fraction(stream.average_rate)
    if container.name not in _RAW:
        return average
    # The demuxer claims 25 per second, whatever the timing information of the stream says.
    claimed = exact_fraction(stream.codec_context.framerate)
    base = exact_fraction(stream.time_base)
    is_usable = claimed is not None and base is not None and claimed * base <= 1
    return claimed if is_usable else average


def claimed_rates(stream: VideoStream) -> tuple[Fraction | None, ...]:
    """Return the frame rates of the codec's timing information and of the demuxer's estimate."""
    rates = (stream.codec_context.framerate, stream.base_rate)
    return tuple(map(exact_fraction, rates))


def _codec_tag(context: VideoCodecContext) -> str:
    try:
        return context.codec_tag.rstrip("\0")
    except UnicodeDecodeError:
        return ""


def _orientation(frame: av.VideoFrame, notes: list[str]) -> tuple[int, bool]:
    """Return (clockwise degrees, whether it is mirrored first) that turn `frame` upright."""
    a, b, _, c, d, *_ = display_matrix(frame)
    determinant = a * d - b * c
    if not determinant:
        notes.append("the display matrix is degenerate; pictures are shown as stored")
        return 0, False
    mirrored = determinant < 0
    if mirrored:
        a, b = -a, -b
    # As in FFmpeg's av_display_rotation_get, which divides out the scale of both axes.
    turned = math.atan2(b / math.hypot(b, d), a / math.hypot(a, c))
    exact = round(math.degrees(turned)) % 360
    upright = (exact + 45) // 90 * 90 % 360
    if upright != exact:
        notes.append(f"rotated by {exact} degrees; shown rotated by {upright}")
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

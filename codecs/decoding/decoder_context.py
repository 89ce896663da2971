"""Creates and configures decoders from a stored stream description, without a container."""

from __future__ import annotations

from typing import cast

import av
from av.codec.context import Flags
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.registry import DECODERS, new_decoder
from vfsd.core.model import MediaInfo
from vfsd.errors import RefusedMediaError

MAX_PIXELS = 1 << 27
"""Most pixels of a picture that decoders accept: 16384 x 8192."""

_CROP_FACTOR = 4
_FEW_PIXELS = 1 << 22


def decoder_context(
    media: MediaInfo, *, threads: int = 1, strict: bool = False
) -> VideoCodecContext:
    """Return a decoder for packets of the stream that `media` describes.

    It behaves as the ffmpeg command does by default: damage is concealed where possible, and
    pictures before the first key picture are dropped. With several `threads`, several pictures are
    decoded at a time, and concealment may depend on their number. If `strict`, damage raises
    `FFmpegError` instead. Raises `RefusedMediaError` if there is no decoder.
    """
    try:
        context = av.CodecContext.create(DECODERS.get(media.codec, media.codec), "r")
    except ValueError as error:
        raise RefusedMediaError(f"FFmpeg has no decoder for {media.codec}") from error
    if not isinstance(context, VideoCodecContext):
        raise RefusedMediaError(f"{media.codec} is not a video codec")
    context.extradata = media.extradata or None
    context.width, context.height = media.decoded_width, media.decoded_height
    if media.codec == "rawvideo":
        context.pix_fmt = media.pixel_format
    if len(media.codec_tag) == 4:
        context.codec_tag = media.codec_tag
    context.reorder_depth = media.reorder_delay
    configure_decoder(context, threads=threads, strict=strict, pixels=max_pixels(media))
    return context


def max_pixels(media: MediaInfo) -> int:
    """Return the most pixels that a picture of an examined file may have.

    That is its decoded size, with room for the crop of decoders. A file with a false header cannot
    use more memory.
    """
    return min(
        MAX_PIXELS, max(_CROP_FACTOR * media.decoded_width * media.decoded_height, _FEW_PIXELS)
    )


def configure_decoder(
    context: VideoCodecContext,
    *,
    threads: int = 1,
    strict: bool = False,
    pixels: int = MAX_PIXELS,
) -> None:
    """Set the options that all decoders here share, before the decoder is opened.

    Pictures with more than `pixels` are refused.
    """
    # Without the flag, FFmpeg moves the left edge of a crop outwards to an aligned column.
    context.flags |= Flags.unaligned
    context.thread_type = "FRAME" if threads > 1 else "NONE"
    context.thread_count = threads
    context.options = {"max_pixels": str(pixels)}
    if strict:
        context.options["err_detect"] = "explode"


def strict_decoder(codec: str, extradata: bytes | None) -> VideoCodecContext:
    """Return a single-threaded decoder for a stream from this package; any damage is an error."""
    context = new_decoder(codec)
    context.extradata = extradata or None
    configure_decoder(context, strict=True)
    return context


def numbered_packet(number: int, payload: bytes | memoryview) -> Packet[VideoStream]:
    """Return a packet for a decoder; the pts of its picture is `number`.

    It has no key flag: no decoder of our own streams depends on that.
    """
    packet = cast("Packet[VideoStream]", Packet(len(payload)))
    packet.update(bytes(payload))  # a copy, with the padding that decoders rely on
    packet.pts = packet.dts = number
    return packet

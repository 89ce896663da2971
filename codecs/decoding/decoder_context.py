"""Creates and configures decoders from a stored stream description, without a container."""

from __future__ import annotations

from typing import cast

import av
from av.codec.context import Flags
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.packet_inspector import INTRA_CODECS
from vfsd.codecs.decoding.demuxer import MAX_PIXELS
from vfsd.codecs.registry import DECODERS, new_decoder
from vfsd.core.model import MediaInfo
from vfsd.errors import RefusedMediaError

_PLAIN_CODECS = INTRA_CODECS | {"hevc", "vp8", "vp9", "av1"}
_CROP_FACTOR = 4
_FEW_PIXELS = 1 << 22


def decoder_context(
    media: MediaInfo, *, threads: int = 1, strict: bool = False
) -> VideoCodecContext:
    """A decoder for the packets of the stream that `media` describes.

    It behaves as FFmpeg's command does by default: damage is concealed where it can be, pictures
    before the first key picture are dropped.  With more than one thread, several pictures are
    decoded at a time; concealment may then depend on the number.  When it is `strict`, damage
    raises `FFmpegError` instead.  Raises `RefusedMediaError` when there is no decoder.
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
    """Pixels that a picture of a file may have which was examined: what it has, with room for what
    decoders crop.  A file that lied takes no more memory than that."""
    return min(
        MAX_PIXELS, max(_CROP_FACTOR * media.decoded_width * media.decoded_height, _FEW_PIXELS)
    )


def needs_first_packet(media: MediaInfo, first: bytes) -> bool:
    """Whether a decoder that starts in mid-stream must have seen the first packet, `first`.

    Some decoders make up for bugs of the encoder, whose name and version only the first packet
    tells.  Codecs whose decoders are not known to be free of that are all taken to need it.
    """
    if media.codec == "h264":
        # Builds before 151 coded 4:4:4 wrongly, those before 34 direct prediction.
        build = nal.x264_build(first)
        return build is not None and build < (151 if "444" in media.pixel_format else 34)
    return media.codec not in _PLAIN_CODECS


def configure_decoder(
    context: VideoCodecContext,
    *,
    threads: int = 1,
    strict: bool = False,
    pixels: int = MAX_PIXELS,
) -> None:
    """Set the options that all our decoders share on one that is not open yet.

    Pictures of more than `pixels` are refused.
    """
    # Without it FFmpeg moves the left edge of a crop outwards, to a multiple of its alignment.
    context.flags |= Flags.unaligned
    context.thread_type = "FRAME" if threads > 1 else "NONE"
    context.thread_count = threads
    context.options = {"max_pixels": str(pixels)}
    if strict:
        context.options["err_detect"] = "explode"


def strict_decoder(codec: str, extradata: bytes | None) -> VideoCodecContext:
    """A decoder with one thread for a stream of our own, to which every damage is an error."""
    context = new_decoder(codec)
    context.extradata = extradata or None
    configure_decoder(context, strict=True)
    return context


def numbered_packet(number: int, payload: bytes | memoryview) -> Packet[VideoStream]:
    """For a decoder, whose picture will have that number.

    It is not flagged as a key packet: no decoder of what we encode goes by that.
    """
    packet = cast("Packet[VideoStream]", Packet(len(payload)))
    packet.update(bytes(payload))  # a copy, with the padding that decoders rely on
    packet.pts = packet.dts = number
    return packet

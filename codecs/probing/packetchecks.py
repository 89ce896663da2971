"""Signs of damage that the decoder of a stream does not report."""

from __future__ import annotations

import av
import av.logging
from av.error import FFmpegError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams.h264_gaps import FrameNumbers
from vfsd.codecs.decoding.context import prepare
from vfsd.codecs.pyav import decode

_SECOND_DECODERS = {"vp9": "libvpx-vp9"}
"""By codec: a decoder that refuses packets whose bits run out too early, as most damage makes them.
FFmpeg's own decodes such packets without an error."""


class PacketChecks:
    """Examines each packet of a stream in decode order, besides the decoder."""

    def __init__(self, stream: VideoStream) -> None:
        context = stream.codec_context
        codec = context.codec.canonical_name
        self._numbers = FrameNumbers(context.extradata or b"") if codec == "h264" else None
        self._second = _second_decoder(codec, context.extradata)
        self._is_proven = False  # the second decoder has decoded a packet

    def passes(self, packet: Packet[VideoStream]) -> bool:
        """Whether nothing is wrong with the next packet, and no picture is missing before it.

        A key packet needs none of the pictures before.
        """
        follows = self._numbers is None or self._numbers.follows(bytes(packet))
        return self._is_decoded(packet) and (follows or packet.is_keyframe)

    def _is_decoded(self, packet: Packet[VideoStream]) -> bool:
        if self._second is None:
            return True
        try:
            decode(self._second, packet)
        except MemoryError:
            raise
        except FFmpegError:
            if not self._is_proven:
                self._second = None  # it may lack the profile
            return not self._is_proven
        self._is_proven = True
        return True


def _second_decoder(codec: str, extradata: bytes | None) -> VideoCodecContext | None:
    """None where there is none; FFmpeg may be built without it."""
    name = _SECOND_DECODERS.get(codec)
    if name is None:
        return None
    try:
        context = av.CodecContext.create(name, "r")
    except ValueError:
        return None
    assert isinstance(context, VideoCodecContext)
    context.extradata = extradata
    prepare(context)
    return context

"""Finds damaged frames: errors that the decoder reports, gaps in H.264 frame_num, packets that a
second decoder refuses, and the frames that depend on them.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import av
import av.logging
import numpy as np
import numpy.typing as npt
from av.error import FFmpegError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import PictureType
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.bit_io import BitReader, DamagedError, unescaped
from vfsd.codecs.bitstreams.packet_inspector import INTRA_CODECS
from vfsd.codecs.decoding.decoder_context import configure_decoder
from vfsd.codecs.decoding.demuxer import LogMessage
from vfsd.codecs.pyav import decode
from vfsd.core.frame_table_pages import Ints, PacketColumns, PacketFlag

_HEADER_BYTES = 24
_RESTARTS = (0, 1)
"""Numbers after a picture that resets them in mid-stream, which is not looked for."""


class FrameNumTracker:
    """Follows the numbers of a stream, packet by packet in decode order."""

    def __init__(self, extradata: bytes) -> None:
        self._prefix = nal.prefix_size("h264", extradata)
        self._lengths: dict[int, int | None] = {}  # by the set's id: bits; None: gaps are allowed
        self._sets: dict[int, int] = {}  # picture parameter set -> sequence parameter set
        self._planes: set[int] = set()  # sequence parameter sets with separate colour planes
        self._before: int | None = None  # the number of the last reference picture
        try:
            for unit in nal.parameter_sets("h264", extradata):
                self._learn(unit)
        except DamagedError:
            pass

    def follows(self, packet: bytes) -> bool:
        """Whether no picture is missing before the one in `packet`, as far as its header tells."""
        try:
            for start, end in nal.nal_units(packet, self._prefix):
                kind = packet[start] & 0x1F
                if kind in (nal.H264_SPS, nal.H264_PPS):
                    self._learn(packet[start:end])
                elif kind in (1, nal.H264_IDR):
                    return self._goes_on(packet[start : min(end, start + _HEADER_BYTES)], kind)
        except DamagedError:
            self._before = None
        return True

    def _learn(self, unit: bytes) -> None:
        payload = unescaped(unit)
        if unit[0] & 0x1F == nal.H264_PPS:
            reader = BitReader(payload[1:])
            number = reader.golomb()
            self._sets[number] = reader.golomb()
        elif unit[0] & 0x1F == nal.H264_SPS and len(payload) >= 5:
            reader = BitReader(payload[4:])
            number = reader.golomb()
            self._planes.discard(number)
            if nal.read_h264_sample_format(reader, unit[1]).separate_planes:
                self._planes.add(number)
            length = reader.golomb() + 4
            nal.skip_display_order(reader)
            reader.golomb()  # reference frames
            self._lengths[number] = None if reader.flag() else length

    def _goes_on(self, head: bytes, kind: int) -> bool:
        reader = BitReader(unescaped(head)[1:])
        reader.golomb()  # the first macroblock
        reader.golomb()  # the type of the slice
        chosen = self._sets.get(reader.golomb(), -1)
        length = self._lengths.get(chosen)
        if length is None:
            self._before = None
            return True
        if chosen in self._planes:
            reader.bits(2)
        number, before = reader.bits(length), self._before
        if head[0] & 0x60:
            self._before = number
        if kind == nal.H264_IDR or before is None or number in _RESTARTS:
            return True
        return number in (before, (before + 1) % (1 << length))


_SECOND_DECODERS = {"vp9": "libvpx-vp9"}
"""By codec: a decoder that refuses packets whose bits run out too early, as most damage makes them.
FFmpeg's own decodes such packets without an error."""


class PacketDamageChecker:
    """Examines each packet of a stream in decode order, besides the decoder."""

    def __init__(self, stream: VideoStream) -> None:
        context = stream.codec_context
        codec = context.codec.canonical_name
        self._numbers = FrameNumTracker(context.extradata or b"") if codec == "h264" else None
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
    configure_decoder(context)
    return context


_HARMLESS_UNITS = ("SEI",)
"""Errors that name these are about what accompanies pictures, not about pictures."""
_UNREFERENCED_B = frozenset(("mpeg1video", "mpeg2video", "mpeg4", "vc1", "wmv3", "rv30", "rv40"))
"""Codecs in which no picture refers to a B picture."""


class DamageNotes:
    """Collects damaged packets while a stream is decoded packet by packet, with one thread."""

    def __init__(self, decoder: str, messages: list[LogMessage]) -> None:
        """`messages` is what FFmpeg reports of errors on the way; they are taken out of it."""
        self.packets: set[int] = set()
        self.unreferenced: set[int] = set()  #: those that no other packet refers to
        self._decoder = decoder
        self._messages = messages

    def fed(self, packet: int, source: Packet[VideoStream]) -> None:
        """`packet`, from the demuxer, has just been given to the decoder."""
        if source.is_corrupt or any(map(self._is_of_picture, self._messages)):
            self.packets.add(packet)
        self._messages.clear()

    def failed(self, packet: int) -> None:
        """The decoder has refused `packet`."""
        self.packets.add(packet)
        self._messages.clear()

    def came(self, pictures: Sequence[av.VideoFrame]) -> None:
        """Pictures have come out, whose pts are the numbers of their packets."""
        for one in pictures:
            if one.pts is None:
                continue
            if one.is_corrupt:
                self.packets.add(one.pts)
            if self._decoder in _UNREFERENCED_B and one.pict_type == PictureType.B:
                self.unreferenced.add(one.pts)

    def _is_of_picture(self, message: LogMessage) -> bool:
        _, name, text = message
        return name == self._decoder and not any(word in text for word in _HARMLESS_UNITS)


def damaged_frames(codec: str, columns: PacketColumns, order: Ints, notes: DamageNotes) -> Ints:
    """The numbers of the frames that show damage, ascending.

    `columns` has the flags that the packets' own bytes promise; a proof by decoding may take some
    back because of the very damage.  `order` is the packet of each frame.

    Damage of a packet that others refer to reaches every frame up to the next key packet, and the
    frames that are shown before that one but decoded after it: the decoder may predict any of them
    from it.
    """
    damaged = np.zeros(len(columns), np.bool_)
    damaged[[packet for packet in notes.packets if packet < len(columns)]] = True
    if codec not in INTRA_CODECS and damaged.any():
        _spread_damage(damaged, columns, notes.unreferenced)
    return np.flatnonzero(damaged[order])


def _spread_damage(
    damaged: npt.NDArray[np.bool_], columns: PacketColumns, unreferenced: Collection[int]
) -> None:
    keys = np.flatnonzero(columns.flags & PacketFlag.KEY).tolist()
    needed = columns.flags & PacketFlag.DISPOSABLE == 0
    needed[[packet for packet in unreferenced if packet < len(needed)]] = False
    reached = False  # the group before, to its end
    for start, end in itertools.pairwise([*({0} - set(keys)), *keys, len(columns)]):
        group = slice(start, end)
        leading = columns.pts[group] < columns.pts[start]
        if reached:
            damaged[group] |= leading
        spreading = damaged[group] & needed[group]
        after = np.arange(end - start)
        for part, sources in ((leading, spreading), (~leading, spreading & ~leading)):
            if sources.any():
                damaged[group] |= part & (after >= int(sources.argmax()))
        reached = bool((spreading & ~leading).any())

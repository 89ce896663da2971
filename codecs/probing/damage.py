"""Finds damaged packets of a stream that is decoded in order, and the frames that they affect."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import av
import numpy as np
import numpy.typing as npt
from av.error import FFmpegError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import PictureType
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.nal import BitReader, BitstreamError, unescaped
from vfsd.codecs.bitstreams.packet_inspector import INTRA_CODECS
from vfsd.codecs.bitstreams.sei_vui import parse_sei
from vfsd.codecs.decoding.demuxer import LogMessage
from vfsd.codecs.frames.planes import fingerprint
from vfsd.codecs.pyav import configure_decoder, decode, numbered_packet
from vfsd.core.frame_table_pages import Ints, PacketColumns, PacketFlag

_HEADER_BYTES = 24
# frame_num after a memory management control operation 5, which is not parsed (H.264 7.4.3).
_RESTARTS = (0, 1)


class FrameNumTracker:
    """Checks frame_num of an H.264 stream, packet by packet in decode order."""

    def __init__(self, extradata: bytes) -> None:
        self._prefix = nal.prefix_size("h264", extradata)
        # Bits of frame_num by SPS ID; None: gaps_in_frame_num_value_allowed_flag is set.
        self._lengths: dict[int, int | None] = {}
        self._sets: dict[int, int] = {}  # SPS ID by PPS ID
        self._planes: set[int] = set()  # IDs of SPS with separate_colour_plane_flag
        self._before: int | None = None  # frame_num of the last reference picture
        try:
            for unit in nal.parameter_sets("h264", extradata):
                self._learn(unit)
        except BitstreamError:
            pass

    def follows(self, packet: bytes) -> bool:
        """Return whether no picture is missing before the one in `packet`, judged by frame_num."""
        try:
            for start, end in nal.nal_units(packet, self._prefix):
                kind = packet[start] & 0x1F
                if kind in (nal.H264_SPS, nal.H264_PPS):
                    self._learn(packet[start:end])
                elif kind in (1, nal.H264_IDR):
                    return self._goes_on(packet[start : min(end, start + _HEADER_BYTES)], kind)
        except BitstreamError:
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
            reader.golomb()  # max_num_ref_frames
            self._lengths[number] = None if reader.flag() else length

    def _goes_on(self, head: bytes, kind: int) -> bool:
        reader = BitReader(unescaped(head)[1:])
        reader.golomb()  # first_mb_in_slice
        reader.golomb()  # slice_type
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


# Decoders by codec that refuse packets which end too early, as most damage causes. FFmpeg's own
# decoders return such pictures without an error.
_SECOND_DECODERS = {"vp9": "libvpx-vp9"}


class PacketDamageChecker:
    """Checks each packet of a stream in decode order, in addition to the decoder."""

    def __init__(self, stream: VideoStream) -> None:
        context = stream.codec_context
        codec = context.codec.canonical_name
        self._numbers = FrameNumTracker(context.extradata or b"") if codec == "h264" else None
        self._second = _second_decoder(codec, context.extradata)
        self._is_proven = False  # the second decoder has decoded a packet

    def passes(self, packet: Packet[VideoStream]) -> bool:
        """Return whether the next packet is intact and no picture is missing before it.

        A key packet needs no earlier picture.
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
                self._second = None  # it may not support the profile
            return not self._is_proven
        self._is_proven = True
        return True


def _second_decoder(codec: str, extradata: bytes | None) -> VideoCodecContext | None:
    """Return the second decoder of a codec; None if there is none in this build of FFmpeg."""
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


# Bytes that follow the data of a packet or slice. None of them begins or ends a unit.
_FILLER = b"\xaa" * 24
_HEVC_SUFFIX_SEI, _PICTURE_HASH = 40, 132


class OverreadChecker:
    """Finds pictures of HEVC and VP8 that depend on bytes beyond the end of their data.

    Both are coded arithmetically: a changed bit gives other symbols without an error, and decoders
    supply missing bits.  About half of such pictures take more bits than there are.  A second
    decoder gets each packet with other bytes behind its data, so it then shows other samples.
    """

    def __init__(self, stream: VideoStream) -> None:
        context = stream.codec_context
        self._codec = context.codec.canonical_name
        self._extradata = bytes(context.extradata or b"")
        self._prefix = nal.prefix_size(self._codec, self._extradata)
        self._decoder: VideoCodecContext | None = None
        self._prints: dict[int, int] = {}  # of pictures that one decoder has shown
        self._wrong: set[int] = set()
        self._packets = 0
        if self._codec not in ("hevc", "vp8"):
            return
        made = av.CodecContext.create(self._codec, "r")
        assert isinstance(made, VideoCodecContext)
        made.extradata = self._extradata or None
        configure_decoder(made)
        self._decoder = made

    def feed(self, packet: Packet[VideoStream]) -> None:
        """Decode the next packet, whose pts is its number."""
        if self._decoder is None or packet.pts is None:
            return
        data = bytes(packet)
        if (not self._packets and self._is_hashed(data)) or packet.has_sidedata("new_extradata"):
            # There are checksums of the pictures, or parameter sets that this decoder lacks.
            self._decoder, self._wrong = None, set()
            return
        self._packets += 1
        padded = numbered_packet(packet.pts, self._padded(data))
        padded.is_keyframe = packet.is_keyframe
        try:
            pictures = decode(self._decoder, padded)
        except MemoryError:
            raise
        except FFmpegError:
            return
        self.compare(pictures)

    def compare(self, pictures: Sequence[av.VideoFrame]) -> None:
        """Note pictures that differ between the decoders; each passes every picture once."""
        if self._decoder is None:
            return
        for picture in pictures:
            if picture.pts is None:
                continue
            found, other = fingerprint(picture), self._prints.pop(picture.pts, None)
            if other is None:
                self._prints[picture.pts] = found
            elif found != other:
                self._wrong.add(picture.pts)

    def finish(self) -> set[int]:
        """Return the packets of all pictures with overreads."""
        if self._decoder is None:
            return set()
        try:
            self.compare(decode(self._decoder, None))
        except MemoryError:
            raise
        except FFmpegError:
            pass  # the rest is not compared
        return self._wrong

    def _padded(self, data: bytes) -> bytes:
        if self._codec == "vp8":
            return data + _FILLER
        parts = []
        try:
            for start, end in nal.nal_units(data, self._prefix):
                unit = data[start:end]
                if nal.holds_slice("hevc", nal.unit_type("hevc", unit)):
                    unit += _FILLER
                size = len(unit).to_bytes(self._prefix, "big") if self._prefix else nal.START_CODE
                parts.append(size + unit)
        except (BitstreamError, OverflowError):
            return data
        return b"".join(parts)

    def _is_hashed(self, data: bytes) -> bool:
        if self._codec != "hevc":
            return False
        try:
            units = [data[start:end] for start, end in nal.nal_units(data, self._prefix)]
        except BitstreamError:
            return False
        return any(
            number == _PICTURE_HASH
            for unit in units
            if nal.unit_type("hevc", unit) == _HEVC_SUFFIX_SEI
            for number, _ in parse_sei(unescaped(unit)[2:])
        )


# Units whose errors do not affect pictures.
_HARMLESS_UNITS = ("SEI",)
# Codecs in which B pictures are never references.
_UNREFERENCED_B = frozenset(("mpeg1video", "mpeg2video", "mpeg4", "vc1", "wmv3", "rv30", "rv40"))


class DamageCollector:
    """Collects damaged packets while a stream is decoded packet by packet with one thread."""

    def __init__(self, decoder: str, messages: list[LogMessage]) -> None:
        """`messages` collects FFmpeg's errors; they are removed once they are evaluated."""
        self.packets: set[int] = set()
        self.unreferenced: set[int] = set()  #: packets that no other one refers to
        self._decoder = decoder
        self._messages = messages

    def on_packet(self, packet: int, source: Packet[VideoStream]) -> None:
        """Evaluate errors after `packet`, from the demuxer, was fed to the decoder."""
        if source.is_corrupt or any(map(self._is_of_picture, self._messages)):
            self.packets.add(packet)
        self._messages.clear()

    def on_error(self, packet: int) -> None:
        """Note that the decoder has refused `packet`."""
        self.packets.add(packet)
        self._messages.clear()

    def on_frames(self, pictures: Sequence[av.VideoFrame]) -> None:
        """Evaluate pictures whose pts is the number of their packet."""
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


def damaged_frames(codec: str, columns: PacketColumns, order: Ints, notes: DamageCollector) -> Ints:
    """Return the numbers of damaged frames, ascending.

    Damage of a packet that others refer to affects every frame up to the next key packet. It also
    affects frames shown before that key packet but decoded after it, since any of them may be
    predicted from the damaged one.

    Args:
        codec: FFmpeg's name of the codec
        columns: packets with flags by their own bytes; decoding may clear flags because of damage
        order: the packet of each frame
        notes: the damaged packets
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
    reached = False  # damage reached the end of the previous GOP
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

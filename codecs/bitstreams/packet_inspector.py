"""Inspects packets without decoding them.

An inspector reads the headers of each packet in turn, and reports key frames, hidden pictures,
fields and sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

import numpy as np
import numpy.typing as npt

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.nal import BitReader, BitstreamError
from vfsd.codecs.bitstreams.picture_headers import (
    JpegHeaderParser,
    PacketTrait,
    PictureSize,
    picture_size_reader,
)

INTRA_CODECS = frozenset(
    {"mjpeg", "ljpeg", "png", "jpeg2000", "rawvideo", "v210", "v410", "r210", "prores", "dnxhd"}
    | {"cfhd", "dvvideo", "huffyuv", "ffvhuff", "utvideo", "magicyuv"}
)
"""Codecs in which every picture decodes alone; in `mjpeg` only those with their own tables."""


_SUBLAYER_UNIT = 0x1000

Inspector = Callable[[bytes, bool], int]
"""Called with a packet and the key flag of the container; returns `PacketTrait`s."""


def final_traits(traits: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the final traits of all packets of a stream.

    HEVC marks a picture as unreferenced within its sub-layer. Pictures of higher sub-layers may
    still refer to it.
    """
    settled = np.array(traits, np.int64)
    sublayers = settled & PacketTrait.SUBLAYER
    if len(sublayers):
        settled[sublayers < sublayers.max()] &= ~PacketTrait.UNREFERENCED
    return settled


def inspector(codec: str, extradata: bytes) -> Inspector | None:
    """Return the inspector of `codec`; None if its packets are not parsed."""
    inspect, size_of = _new_inspector(codec, extradata), picture_size_reader(codec)
    return inspect if inspect is None or size_of is None else _SizeChangeInspector(inspect, size_of)


def _new_inspector(codec: str, extradata: bytes) -> Inspector | None:
    if codec == "h264":
        return _H264Inspector(extradata)
    if codec == "hevc":
        return _HevcInspector(extradata)
    if codec == "vp8":
        return _vp8
    if codec == "vp9":
        return _vp9
    if codec in ("av1", "png"):
        # The PNG decoder adds packets that are not key packets to the last picture. Only the
        # container has the flag.
        return _container_key
    if codec == "mjpeg":
        return _MotionJpegInspector()
    if codec in INTRA_CODECS:
        return _intra
    if codec in ("mpeg1video", "mpeg2video"):
        return Mpeg12Inspector(extradata)
    if codec == "mpeg4":
        try:
            return Mpeg4Inspector(extradata)
        except BitstreamError:
            return None
    return _TYPED_INSPECTORS.get(codec)


class _SizeChangeInspector:
    """Marks pictures of another size than the first as odd, since only a decode can judge them."""

    def __init__(self, inspect: Inspector, size_of: Callable[[bytes], PictureSize | None]) -> None:
        self._inspect = inspect
        self._size_of = size_of
        self._size: PictureSize | None = None

    def __call__(self, packet: bytes, key: bool) -> int:
        size = self._size_of(packet)
        self._size = self._size or size
        is_other = size is not None and size != self._size
        return self._inspect(packet, key) | (PacketTrait.ODD if is_other else 0)


def _parameter_sets(codec: str, extradata: bytes) -> set[bytes]:
    try:
        return set(nal.parameter_sets(codec, extradata))
    except nal.BitstreamError:
        return set()


class _H264Inspector:
    """Inspects packets of H.264."""

    def __init__(self, extradata: bytes) -> None:
        self._prefix = nal.prefix_size("h264", extradata)
        self._known = _parameter_sets("h264", extradata)

    def __call__(self, packet: bytes, key: bool) -> int:
        traits = PacketTrait.UNREFERENCED
        sequence = picture = coded = recovers = False
        try:
            for start, end in nal.nal_units(packet, self._prefix):
                head = packet[start]
                kind = head & 0x1F
                if 1 <= kind <= 5:
                    coded = True
                    if kind == nal.H264_IDR:
                        traits |= PacketTrait.STARTS | PacketTrait.RESETS
                    elif kind != 1:
                        traits |= PacketTrait.ODD  # data partitions
                    if head & 0x60:
                        traits &= ~PacketTrait.UNREFERENCED
                elif kind in (nal.H264_SPS, nal.H264_PPS):
                    unit = packet[start:end]
                    sequence |= kind == nal.H264_SPS
                    picture |= kind == nal.H264_PPS
                    if unit not in self._known:
                        traits |= PacketTrait.FOREIGN
                elif kind == nal.H264_SEI and key:
                    recovers |= nal.h264_recovery_is_exact(packet[start:end])
        except nal.BitstreamError:
            return PacketTrait.DAMAGED
        if not coded:
            return PacketTrait.DAMAGED
        if sequence or picture:
            traits &= ~PacketTrait.UNREFERENCED
            if sequence and picture:
                traits |= PacketTrait.PARAMETERS
        if key and not traits & PacketTrait.STARTS:
            traits |= PacketTrait.STARTS if recovers else PacketTrait.ODD
        return traits


class _HevcInspector:
    """Inspects packets of HEVC."""

    def __init__(self, extradata: bytes) -> None:
        self._prefix = nal.prefix_size("hevc", extradata)
        self._known = _parameter_sets("hevc", extradata)

    def __call__(self, packet: bytes, key: bool) -> int:
        traits = 0
        kinds = set()
        try:
            for start, end in nal.nal_units(packet, self._prefix):
                if end - start < 2:
                    return PacketTrait.DAMAGED
                if packet[start] & 1 or packet[start + 1] & 0xF8:
                    continue  # another layer
                kind = packet[start] >> 1 & 0x3F
                kinds.add(kind)
                if kind < 32:
                    traits |= self._coded(kind) | ((packet[start + 1] & 7) - 1) * _SUBLAYER_UNIT
                elif kind <= nal.HEVC_PPS:
                    unit = packet[start:end]
                    if unit not in self._known:
                        traits |= PacketTrait.FOREIGN
                elif kind in (36, 37):  # EOS or EOB: a CRA picture after it decodes differently
                    traits |= PacketTrait.ODD
        except nal.BitstreamError:
            return PacketTrait.DAMAGED
        if not any(kind < 32 for kind in kinds):
            return PacketTrait.DAMAGED
        if kinds & {nal.HEVC_VPS, nal.HEVC_SPS, nal.HEVC_PPS}:
            traits &= ~PacketTrait.UNREFERENCED
            if kinds >= {nal.HEVC_VPS, nal.HEVC_SPS, nal.HEVC_PPS}:
                traits |= PacketTrait.PARAMETERS
        if key and not traits & PacketTrait.STARTS:
            traits |= PacketTrait.ODD
        return traits

    def _coded(self, kind: int) -> int:
        if kind == 20:
            return PacketTrait.STARTS | PacketTrait.RESETS
        if kind in (19, 21):  # IDR_W_RADL, CRA_NUT
            return PacketTrait.STARTS
        if kind >= 16:  # BLA pictures and reserved types
            return PacketTrait.ODD
        traits = PacketTrait.LEADING if kind in (8, 9) else 0
        return traits if kind & 1 else traits | PacketTrait.UNREFERENCED


def _vp8(packet: bytes, key: bool) -> int:
    if not packet:
        return PacketTrait.DAMAGED
    traits = 0 if packet[0] & 0x10 else PacketTrait.HIDDEN
    if not packet[0] & 1:
        traits |= PacketTrait.STARTS | PacketTrait.RESETS
    return traits


def _vp9(packet: bytes, key: bool) -> int:
    frames = _vp9_frames(packet)
    if not frames:
        return PacketTrait.DAMAGED
    shown = starts = 0
    for ordinal, head in enumerate(frames):
        if head >> 6 != 2:
            return PacketTrait.DAMAGED
        # frame_marker (2), profile (2, and 1 reserved for profile 3), show_existing_frame,
        # frame_type, show_frame (VP9, 6.2).
        at = 3 - (head >> 4 & 3 == 3)
        if head >> at & 1:
            shown += 1
            continue
        if ordinal == 0:
            starts = not head >> (at - 1) & 1
        shown += head >> (at - 2) & 1
    traits = PacketTrait.STARTS | PacketTrait.RESETS if starts else 0
    if shown == 0:
        traits |= PacketTrait.HIDDEN
    if shown > 1 or key != bool(starts):
        traits |= PacketTrait.ODD
    return traits


def _vp9_frames(packet: bytes) -> list[int]:
    """Return the first byte of each frame of a packet, which may be a superframe (VP9, annex B)."""
    if not packet:
        return []
    marker = packet[-1]
    if marker >> 5 == 0b110:
        count, width = (marker & 7) + 1, (marker >> 3 & 3) + 1
        index = count * width + 2
        if len(packet) > index and packet[-index] == marker:
            at, heads = 0, []
            for entry in range(len(packet) - index + 1, len(packet) - 1, width):
                size = int.from_bytes(packet[entry : entry + width], "little")
                if size:
                    if at >= len(packet) - index:
                        return []
                    heads.append(packet[at])
                at += size
            return heads
    return [packet[0]]


class _MotionJpegInspector:
    """Inspects JPEG pictures.

    A picture that relies on tables or settings of earlier pictures is odd: only a decode can judge
    it. Without any Huffman tables, those that every decoder starts with apply.
    """

    def __init__(self) -> None:
        self._parser = JpegHeaderParser()
        self._size: bytes | None = None  # size of the first picture
        self._has_codes = False  # the default Huffman tables may have been replaced
        self._settings = 0

    def __call__(self, packet: bytes, key: bool) -> int:
        header = self._parser.parse(packet)
        if header is None:
            return PacketTrait.ODD
        lacks = (
            header.lacks_quantizers
            or (header.lacks_codes and self._has_codes)
            or self._settings & ~header.settings
            or not header.settings_first
        )
        self._has_codes |= header.has_codes
        self._settings |= header.settings
        self._size = self._size or header.size
        return PacketTrait.ODD if lacks or header.size != self._size else _intra(packet, key)


def _container_key(packet: bytes, key: bool) -> int:
    return PacketTrait.STARTS | PacketTrait.RESETS if key else 0


def _intra(packet: bytes, key: bool) -> int:
    return PacketTrait.STARTS | PacketTrait.RESETS | PacketTrait.UNREFERENCED


def _ffv1(packet: bytes, key: bool) -> int:
    """Read the keyframe bit: the first bit of a range coder that begins at 0xFF00 (RFC
    9043, 4.4).
    """
    is_key = int.from_bytes(packet[:2], "big") >= _FFV1_KEY
    return _typed_picture(is_key, key)


def _theora(packet: bytes, key: bool) -> int:
    """Read the first bits: header packets, which show no picture, and inter frames."""
    if not packet:
        return PacketTrait.HIDDEN
    return PacketTrait.ODD if packet[0] & 0x80 else _typed_picture(not packet[0] & 0x40, key)


def _flv1(packet: bytes, key: bool) -> int:
    """Parse Sorenson H.263: start code, format, time, and a size of three bits or more."""
    bits = BitReader(packet[:16])
    try:
        if bits.bits(17) != 1 or bits.bits(5) > 1:
            return PacketTrait.DAMAGED
        bits.bits(8)
        form = bits.bits(3)
        bits.bits({0: 16, 1: 32}.get(form, 0))
        return _typed_picture(bits.bits(2) == 0, key)
    except BitstreamError:
        return PacketTrait.DAMAGED


def _msmpeg4(packet: bytes, key: bool) -> int:
    """Read the picture type, which comes first in versions 2 and later, and in WMV 1."""
    kind = packet[0] >> 6 if packet else 2
    return PacketTrait.DAMAGED if kind > 1 else _typed_picture(kind == 0, key)


def _wmv2(packet: bytes, key: bool) -> int:
    return _typed_picture(not packet[0] & 0x80, key) if packet else PacketTrait.DAMAGED


def _typed_picture(is_key: bool, key: bool) -> int:
    """Return the traits for codecs without reordering; packet and container must agree."""
    if is_key != key:
        return PacketTrait.ODD
    return PacketTrait.STARTS | PacketTrait.RESETS if is_key else 0


_FFV1_KEY = 0x7F80
_TYPED_INSPECTORS: dict[str, Inspector] = {
    "ffv1": _ffv1,
    "theora": _theora,
    "flv1": _flv1,
    "msmpeg4v2": _msmpeg4,
    "msmpeg4v3": _msmpeg4,
    "wmv1": _msmpeg4,
    "wmv2": _wmv2,
}


_PREFIX = b"\0\0\1"
_PICTURE = _PREFIX + b"\0"
_SEQUENCE = _PREFIX + b"\xb3"
_USER_DATA = _PREFIX + b"\xb2"
_GROUP = _PREFIX + b"\xb8"
_EXTENSION = _PREFIX + b"\xb5"
_I, _P, _B = 1, 2, 3
_FIELDS = ({1, 2}, {2, 1})
_FRAME = 3
_PICTURE_CODING = 8
# extension_start_code_identifier (ITU-T H.262, table 6-2) of sequences, displays, copyright,
# pan-scan and pictures. Other extensions change how samples decode.
_PLAIN_EXTENSIONS = frozenset({1, 2, 4, 7, _PICTURE_CODING})


class Mpeg12Inspector:
    """Inspects packets of MPEG-1 and MPEG-2 video: one frame each, or both of its fields."""

    def __init__(self, extradata: bytes) -> None:
        self._sequence = _sequence_of(extradata)
        self._leads = False  # B pictures need pictures before the last I picture
        self._is_first = True  # no I picture yet

    def __call__(self, packet: bytes, key: bool) -> int:
        start = packet.find(_PICTURE)
        if start < 0:
            return PacketTrait.DAMAGED
        traits = 0
        sequence = _sequence_of(packet[:start])
        self._sequence = self._sequence or sequence
        if sequence and sequence != self._sequence:
            traits |= PacketTrait.ODD
        group = packet.find(_GROUP, 0, start)
        is_closed = (
            group >= 0
            and packet[group + 7 : group + 8] >= b"\x40"
            and (packet[group + 7] & 0x60 == 0x40)
        )
        types, structures = [], []
        while start >= 0:
            following = packet.find(_PICTURE, start + 4)
            header = _picture(packet, start)
            if header is None:
                return traits | PacketTrait.ODD
            types.append(header[0])
            structures.append(header[1])
            start = following
        if not _is_whole(types, structures):
            return traits | PacketTrait.ODD
        if types[0] == _B:
            return traits | PacketTrait.UNREFERENCED | (PacketTrait.LEADING if self._leads else 0)
        if types[0] == _I:
            # Some encoders set closed_gop where B pictures need the group before.  The flag is
            # believed in the first group only, which has none before.
            self._leads = not (is_closed and self._is_first)
            self._is_first = False
            return traits | PacketTrait.STARTS
        self._leads = False
        return traits


def _sequence_of(head: bytes) -> bytes:
    """Return the sequence header with its extensions; empty if there is none."""
    start = head.find(_SEQUENCE)
    if start < 0:
        return b""
    ends = (head.find(code, start) for code in (_GROUP, _USER_DATA, _PICTURE))
    return head[start : min((end for end in ends if end >= 0), default=len(head))].rstrip(b"\0")


def _picture(packet: bytes, start: int) -> tuple[int, int] | None:
    """Return (type, structure) of the picture header at `start`; None if it is unusual."""
    head = packet[start : start + 6]
    if len(head) < 6:
        return None
    kind, structure = head[5] >> 3 & 7, _FRAME
    at = packet.find(_PREFIX, start + 4)
    while at >= 0 and packet[at : at + 4] in (_EXTENSION, _USER_DATA):
        if packet[at + 3] == _EXTENSION[3]:
            body = packet[at + 4 : at + 7]
            if len(body) < 3 or body[0] >> 4 not in _PLAIN_EXTENSIONS:
                return None
            if body[0] >> 4 == _PICTURE_CODING:
                structure = body[2] & 3
        at = packet.find(_PREFIX, at + 4)
    return (kind, structure) if kind in (_I, _P, _B) and structure else None


def _is_whole(types: list[int], structures: list[int]) -> bool:
    """Return whether these pictures are one frame, or both fields of one."""
    if structures == [_FRAME]:
        return True
    if len(types) != 2 or set(structures) != {1, 2}:
        return False
    return types[0] == types[1] or types == [_I, _P]


_OBJECT_PICTURE = _PREFIX + b"\xb6"
_OBJECT_GROUP = _PREFIX + b"\xb3"
_LAYERS = range(0x20, 0x30)
_OBJECT_I, _OBJECT_B = 0, 2
_RECTANGULAR = 0
_EXTENDED_ASPECT = 15
_MAX_SECONDS = 64
# Most bytes of a placeholder packet. FFmpeg delays the content of a longer packet that shows a
# picture of the previous one.
_MAX_REST = 7


class Mpeg4Inspector:
    """Inspects packets of MPEG-4 part 2 video."""

    def __init__(self, extradata: bytes) -> None:
        self._layer = _layer_of(extradata)
        self._clock = _VopClock(self._layer)
        self._leads = False
        self._is_packed = False  # the previous packet holds the picture of this one

    def __call__(self, packet: bytes, key: bool) -> int:
        try:
            return self._inspect(packet)
        except BitstreamError:
            return PacketTrait.ODD

    def _inspect(self, packet: bytes) -> int:
        start = packet.find(_OBJECT_PICTURE)
        if start < 0:
            return PacketTrait.DAMAGED
        traits = 0
        layer = _layer_of(packet[:start])
        if layer and layer != self._layer:
            traits |= PacketTrait.ODD if self._layer else 0
            self._layer, self._clock = layer, _VopClock(layer)
        group = packet.find(_OBJECT_GROUP, 0, start)
        if group >= 0:
            self._clock.reset(packet[group + 4 : group + 8])
        following = packet.find(_OBJECT_PICTURE, start + 4)
        # A decoder never sees the placeholder for a picture of the previous packet.
        clock = copy(self._clock) if self._is_packed else self._clock
        kind, is_coded = clock.picture(packet[start + 4 : start + 16])
        if self._is_packed:
            # The delayed picture comes out, and that of this packet is delayed.
            self._is_packed = is_coded
            is_usual = kind == _OBJECT_B if is_coded else len(packet) <= _MAX_REST
            if following >= 0 or not is_usual:
                return PacketTrait.ODD
            return traits | (PacketTrait.LEADING if self._leads else 0) | PacketTrait.UNPACKED
        if following >= 0:
            second, second_is_coded = self._clock.picture(packet[following + 4 : following + 16])
            is_usual = kind != _OBJECT_B and is_coded and second == _OBJECT_B and second_is_coded
            if not is_usual or packet.find(_OBJECT_PICTURE, following + 4) >= 0:
                return PacketTrait.ODD
            self._is_packed = True
        if not is_coded:
            return traits | PacketTrait.HIDDEN
        if kind == _OBJECT_B:
            return traits | PacketTrait.UNREFERENCED | (PacketTrait.LEADING if self._leads else 0)
        self._leads = kind == _OBJECT_I
        return traits | (PacketTrait.STARTS if kind == _OBJECT_I else 0)


def _layer_of(head: bytes) -> bytes:
    """Return the video object layer header without its start code; empty if there is none."""
    at = head.find(_PREFIX)
    while at >= 0:
        if head[at + 3 : at + 4] and head[at + 3] in _LAYERS:
            end = head.find(_PREFIX, at + 4)
            return head[at + 4 : end if end >= 0 else len(head)]
        at = head.find(_PREFIX, at + 3)
    return b""


class _VopClock:
    """The display times of pictures in a layer. Decoders drop some pictures because of them."""

    def __init__(self, layer: bytes) -> None:
        self._ticks = _ticks_of(layer) if layer else 0
        self._seconds = self._seconds_before = 0
        self._last = self._step = 0

    def reset(self, code: bytes) -> None:
        """Begin a group of VOPs with that time code."""
        bits = BitReader(code)
        hours, minutes = bits.bits(5), bits.bits(6)
        bits.bits(1)
        self._seconds = 3600 * hours + 60 * minutes + bits.bits(6)

    def picture(self, head: bytes) -> tuple[int, bool]:
        """Return (type, whether it is coded) of the picture with that header.

        Raises `BitstreamError` for a B picture that is not between its neighbours.
        """
        if not self._ticks:
            raise BitstreamError("a picture without a layer header")
        bits = BitReader(head)
        kind, seconds = bits.bits(2), 0
        while bits.flag():
            seconds += 1
            if seconds > _MAX_SECONDS:
                raise BitstreamError("picture time out of range")
        marked = bits.flag()
        tick = bits.bits(max(1, (self._ticks - 1).bit_length()))
        if not (marked and bits.flag()):
            raise BitstreamError("a picture header without marker bits")
        is_coded = bits.flag()
        if kind != _OBJECT_B:
            self._seconds_before = self._seconds
            self._seconds += seconds
            time = self._seconds * self._ticks + tick
            self._step, self._last = time - self._last, time
        elif is_coded:
            time = (self._seconds_before + seconds) * self._ticks + tick
            before = self._step - (self._last - time)
            if not 0 < before < self._step:
                raise BitstreamError("a B picture that is not between its neighbours")
        return kind, is_coded


def _ticks_of(layer: bytes) -> int:
    """Return the ticks per second (vop_time_increment_resolution, ISO/IEC 14496-2, 6.2.3)."""
    bits = BitReader(layer)
    bits.bits(1 + 8)
    version = 1
    if bits.flag():
        version = bits.bits(4)
        bits.bits(3)
    if bits.bits(4) == _EXTENDED_ASPECT:
        bits.bits(16)
    if bits.flag():
        bits.bits(2 + 1)
        if bits.flag():
            bits.bits(79)
    if bits.bits(2) != _RECTANGULAR:
        raise BitstreamError(f"a layer of version {version} with a shape")
    if not bits.flag():
        raise BitstreamError("a layer header without marker bits")
    return bits.bits(16)

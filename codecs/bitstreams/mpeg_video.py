"""Picture headers of MPEG-1, MPEG-2 and MPEG-4 part 2 video.

They say what each packet shows, and which other packets it needs.
"""

from __future__ import annotations

from copy import copy

from vfsd.codecs.bitstreams.bit_io import BitReader, BitstreamError
from vfsd.codecs.bitstreams.picture_headers import PacketTrait

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
_PLAIN_EXTENSIONS = frozenset({1, 2, 4, 7, _PICTURE_CODING})
"""extension_start_code_identifier (ITU-T H.262, table 6-2) of sequences, displays, copyright,
pan-scan and pictures. Other extensions change how samples decode."""


class Mpeg12Inspector:
    """Inspects packets of MPEG-1 and MPEG-2 video: one frame each, or both of its fields."""

    def __init__(self, extradata: bytes) -> None:
        self._sequence = _sequence_of(extradata)
        self._leads = False  # B pictures need pictures before the last I picture

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
            self._leads = not is_closed
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
_MAX_REST = 7
"""Most bytes of a placeholder packet. FFmpeg delays the content of a longer packet that shows a
picture of the previous one."""


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

"""Lost pictures of H.264: gaps in the numbers of reference frames.

ITU-T H.264: 7.3.3 (slice header), 7.4.3 (frame_num).  Where a sequence parameter set allows no
gaps, the number of a picture is that of the reference frame before it, or the next one.  A decoder
shows pictures that refer to a lost one without an error.
"""

from __future__ import annotations

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.bit_io import BitReader, DamagedError, unescaped

_HEADER_BYTES = 24
_RESTARTS = (0, 1)
"""Numbers after a picture that resets them in mid-stream, which is not looked for."""


class FrameNumbers:
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
            for start, end in nal.units(packet, self._prefix):
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
            if nal.h264_samples(reader, unit[1]).separate_planes:
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

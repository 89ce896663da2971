"""Inspects packets without decoding them.

Reports whether decoding may start at a packet, and whether other packets refer to it. `inspector`
returns the function for a codec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.bit_io import BitReader, BitstreamError
from vfsd.codecs.bitstreams.mpeg_video import Mpeg4Inspector, Mpeg12Inspector
from vfsd.codecs.bitstreams.picture_headers import (
    PacketTrait,
    PictureSize,
    parse_jpeg_header,
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


def settled_traits(traits: Sequence[int]) -> npt.NDArray[np.int64]:
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
        self._size: bytes | None = None  # size of the first picture
        self._has_codes = False  # the default Huffman tables may have been replaced
        self._settings = 0

    def __call__(self, packet: bytes, key: bool) -> int:
        header = parse_jpeg_header(packet)
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

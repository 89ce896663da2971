"""Detects the container of a file from its first bytes, never from its name.

Refuses playlists and other files that must not reach a demuxer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vfsd.errors import RefusedMediaError

HEAD_BYTES = 1 << 16
"""Bytes of a file that `detect_container` needs."""


@dataclass(frozen=True, slots=True)
class Container:
    """A supported container."""

    name: str  #: as in `vfsd.core.model.MediaInfo.container`
    demuxer: str  #: FFmpeg's name of the demuxer
    timed: bool = True  #: timestamps are display times, not just the order of packets
    sliced: bool = True  #: packets can be contiguous in the file


_CONTAINERS = {
    container.name: container
    for container in (
        Container("mp4", "mov"),
        Container("mov", "mov"),
        Container("matroska", "matroska"),
        Container("webm", "matroska"),
        Container("flv", "flv"),
        Container("ivf", "ivf"),
        Container("obu", "obu", timed=False, sliced=False),
        Container("ogg", "ogg", sliced=False),
        Container("mpegts", "mpegts", sliced=False),
        Container("mpegps", "mpeg", sliced=False),
        Container("avi", "avi", timed=False),
        Container("h264", "h264", timed=False),
        Container("hevc", "hevc", timed=False),
        Container("mpegvideo", "mpegvideo", timed=False),
        Container("m4v", "m4v", timed=False),
        Container("y4m", "yuv4mpegpipe"),
        Container("mxf", "mxf"),
        Container("asf", "asf", sliced=False),
        Container("rm", "rm", sliced=False),
        Container("dv", "dv"),
        Container("nut", "nut"),
        Container("gif", "gif", sliced=False),
        Container("apng", "apng", sliced=False),
    )
}

# The first byte of each packet of a transport stream.
_SYNC = b"\x47"
# Sync bytes in a row that identify a transport stream at any offset.
_MANY_PACKETS = 16
# A temporal delimiter OBU and the first byte of a sequence header OBU (AV1, 5.3).
_AV1_UNITS = b"\x12\x00\x0a"
# The key of the header's partition pack (SMPTE 377-1, 7.1).
_MXF_PARTITION = b"\x06\x0e\x2b\x34\x02\x05\x01\x01\x0d\x01\x02\x01\x01\x02"
_ANIMATED_PNG = re.compile(rb"\x89PNG\r\n\x1a\n(?:(?!IDAT).)*acTL", re.DOTALL)
_MP4_BOXES = frozenset(b"ftyp moov mdat free skip wide styp sidx moof pnot uuid emsg prft".split())
_STILL_BRANDS = frozenset(b"heic heix heim heis mif1 avif".split())
# Brands of image files that also hold a track of moving pictures.
_MOVING_BRANDS = frozenset(b"avis msf1 hevc hevx".split())

_REFUSED = (
    (rb"#EXTM3U", "a playlist (M3U/HLS) is not a video"),
    (rb"ffconcat", "a playlist (ffconcat) is not a video"),
    (rb"\[playlist\]|\[Reference\]", "a playlist is not a video"),
    (rb"(?:\xef\xbb\xbf)?\s*<(?:\?xml|MPD|smil|SmoothStreamingMedia|asx)", "XML is not a video"),
    (rb"v=0\r?\n", "a session description (SDP) is not a video"),
    (rb"RIFF....WEBPVP8X.{0,99}ANIM", "WebP animations are not supported"),
    (rb"[FCZ]WS[\x01-\x40]", "Flash (SWF) is a program, not a video"),
    (rb"\xff\xd8\xff", "a still image (JPEG), or several without a container, is not a video"),
    (rb"\x89PNG", "a still image (PNG) is not a video"),
    (rb"BM.{4}\0\0\0\0", "a still image (BMP) is not a video"),
    (rb"II\*\0|MM\0\*", "a still image (TIFF) is not a video"),
    (rb"RIFF....WEBP", "a still image (WebP) is not a video"),
    (rb"ID3|fLaC|RIFF....WAVE|RF64|FORM....AIF|\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff]", "audio only"),
    (rb"%PDF|PK\x03\x04|\x7fELF|\x1f\x8b|SQLite", "not a video"),
)


def container_of(name: str) -> Container:
    """Return the container with that name in a `MediaInfo`. Raises `KeyError`."""
    return _CONTAINERS[name]


def detect_container(head: bytes) -> Container:
    """Return the container of a file from its first `HEAD_BYTES` bytes, or all of a shorter file.

    Raises `RefusedMediaError` with the reason, without the name of the file.
    """
    if not head:
        raise RefusedMediaError("the file is empty")
    name = _container_name(head)
    if name is not None:
        return _CONTAINERS[name]
    for pattern, reason in _REFUSED:
        if re.match(pattern, head, re.DOTALL):
            raise RefusedMediaError(reason)
    # Checked last, since sync bytes may occur in files of any other kind.
    if _is_transport_stream(head) or _is_transport_stream_behind(head):
        return _CONTAINERS["mpegts"]
    raise RefusedMediaError("the first bytes match no supported video format")


def _container_name(head: bytes) -> str | None:
    if head[4:8] in _MP4_BOXES:
        return _mp4_kind(head)
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return "webm" if b"\x42\x82\x84webm" in head[:64] else "matroska"
    if head.startswith(b"RIFF") and head[8:11] == b"AVI":
        return "avi"
    for magic, name in (
        (b"FLV\x01", "flv"),
        (b"DKIF\0\0", "ivf"),
        (_AV1_UNITS, "obu"),
        (b"OggS\0", "ogg"),
        (b"YUV4MPEG2 ", "y4m"),
        (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\0\xaa\0\x62\xce\x6c", "asf"),
        (b".RMF\0\0\0", "rm"),
        (b"nut/multimedia container\0", "nut"),
        (b"GIF87a", "gif"),
        (b"GIF89a", "gif"),
    ):
        if head.startswith(magic):
            return name
    if head.startswith(_MXF_PARTITION):
        return "mxf"
    if _ANIMATED_PNG.match(head):
        return "apng"
    if _is_dv(head):
        return "dv"
    if head.startswith(_SYNC) and _is_transport_stream(head):
        return "mpegts"
    stamped = head[4 : 4 + 5 * 192 : 192]  # M2TS: an arrival timestamp before each packet
    if len(stamped) >= 2 and stamped == _SYNC * len(stamped):
        return "mpegts"
    return _start_code_kind(head)


def _mp4_kind(head: bytes) -> str:
    if head[4:8] != b"ftyp":
        return "mov"
    brands = {head[at : at + 4] for at in range(16, min(int.from_bytes(head[:4]), 256), 4)}
    if head[8:12] in _STILL_BRANDS and not brands & _MOVING_BRANDS:
        raise RefusedMediaError("a still image (HEIF or AVIF) is not a video")
    return "mov" if head[8:12] == b"qt  " else "mp4"


def _is_dv(head: bytes) -> bool:
    """Return whether the sections of a DV frame begin here, in blocks of 80 bytes.

    These are a header, two of subcode, and three of VAUX or video (IEC 61834-2, 11.2).
    """
    sections = [head[at : at + 1] for at in (0, 80, 160, 240, 320, 400)]
    kinds = [section[0] >> 5 for section in sections if section]
    return head[:1] == b"\x1f" and head[1:3] == b"\x07\0" and kinds == [0, 1, 1, 2, 2, 2]


def _is_transport_stream_behind(head: bytes) -> bool:
    """Return whether many sync bytes at equal distances follow other bytes."""
    for stride in (188, 192, 204):
        at = head.find(_SYNC)
        while 0 <= at <= len(head) - _MANY_PACKETS * stride:
            if head[at : at + _MANY_PACKETS * stride : stride] == _SYNC * _MANY_PACKETS:
                return True
            at = head.find(_SYNC, at + 1)
    return False


def _is_transport_stream(head: bytes) -> bool:
    """Return whether five sync bytes follow at equal distances (at least two in a short file)."""
    strides = (188, 192, 204)
    start = head.find(_SYNC)
    while 0 <= start < max(strides):
        for stride in strides:
            syncs = head[start : start + 5 * stride : stride]
            if start < stride and syncs.count(_SYNC) == len(syncs) >= 2:
                return True
        start = head.find(_SYNC, start + 1)
    return False


def _start_code_kind(head: bytes) -> str | None:
    """Return the container of a stream that begins with an MPEG start code, 00 00 01 xx."""
    match = re.match(rb"\0{2,64}\x01(..)", head, re.DOTALL)
    if match is None:
        return None
    first, second = match[1]
    if first == 0xBA:
        return "mpegps"
    if first == 0xB3:
        return "mpegvideo"
    if first in (0x00, 0xB0, 0xB5):
        return "m4v"
    # A NAL unit.  HEVC: six bits of type, layer 0, temporal id 0; H.264: five bits of type.
    if first >> 1 in (32, 33, 34, 35, 39, 16, 19, 20, 21) and not first & 1 and second == 0x01:
        return "hevc"
    if not first & 0x80 and first & 0x1F in (1, 5, 6, 7, 8, 9):
        return "h264"
    return None


_SPARE_PACKETS = 10_000
# An index that lists more than `_SPARE_PACKETS` smaller packets on average is forged.
_MIN_PACKET_BYTES = 4


def max_packets(size: int) -> int:
    """Return the most packets that a file of `size` bytes may list."""
    return _SPARE_PACKETS + size // _MIN_PACKET_BYTES

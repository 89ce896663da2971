"""How Matroska and MP4 describe an audio stream of any codec.

FFmpeg's own muxers write a header into memory, from which the entry of the codec is read.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from av.audio.stream import AudioStream
from av.error import FFmpegError
from av.packet import Packet

from vfsd.codecs.containers.isobmff import find_box, make_box, parse_boxes
from vfsd.codecs.pyav import open_output

_MAX_SIZE_BYTES = 8


def ebml_elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (ID with its marker bits, body) of each element (RFC 8794, section 4 to 6).

    An element of unknown size, or one that is cut off, has all remaining bytes. Ends at bytes that
    are not an element.
    """
    at = 0
    while at < len(data):
        id_length = _length(data[at])
        if id_length > 4 or at + id_length >= len(data):
            return
        identifier = int.from_bytes(data[at : at + id_length], "big")
        at += id_length
        size_length = _length(data[at])
        if size_length > _MAX_SIZE_BYTES or at + size_length > len(data):
            return
        size = int.from_bytes(data[at : at + size_length], "big") & (1 << 7 * size_length) - 1
        at += size_length
        if size == (1 << 7 * size_length) - 1:
            size = len(data) - at
        yield identifier, data[at : at + size]
        at += size


def first_ebml_element(data: bytes, *path: int) -> bytes | None:
    """Return the body of the first element at a path of IDs; None if there is none."""
    for identifier in path:
        found = next((body for name, body in ebml_elements(data) if name == identifier), None)
        if found is None:
            return None
        data = found
    return data


def ebml_number(body: bytes) -> int:
    """Return an unsigned integer."""
    return int.from_bytes(body, "big")


def _length(head: int) -> int:
    """Return the bytes of a variable-size integer by its first byte; 9 if that is invalid."""
    return 9 - head.bit_length()


_SEGMENT, _TRACKS, _ENTRY = 0x18538067, 0x1654AE6B, 0xAE
_CODEC_ID, _CODEC_PRIVATE = 0x86, 0x63A2
_AUDIO, _BIT_DEPTH = 0xE1, 0x6264
_ACM = "A_MS/ACM"
"""The CodecID of audio with a WAVEFORMATEX structure as CodecPrivate."""
_WAVE_HEAD = 12  # RIFF, size, WAVE
_MP4_CODECS = frozenset({"eac3", "dts", "qcelp"})
"""Codecs with a registered form in MP4, besides those of `audio_entries`."""
_MP4_OPTIONS = {"movflags": "empty_moov+delay_moov+default_base_moof"}
_CHUNK_HEAD = 8


@dataclass(frozen=True, slots=True)
class AudioHeaders:
    """The descriptions of an audio stream; empty if the container does not support the codec."""

    matroska_codec: str  #: CodecID
    matroska_private: bytes  #: CodecPrivate
    mp4_entry: bytes  #: the complete sample entry box
    bit_depth: int  #: BitDepth of Matroska; 0: not written


def audio_headers(stream: AudioStream, head: Sequence[Packet[AudioStream]]) -> AudioHeaders:
    """Return how Matroska and MP4 describe `stream`, which begins with the packets `head`."""
    codec, private, depth = _matroska_headers(stream)
    name = stream.codec_context.codec.canonical_name
    entry = _mp4_entry(stream, head) if name in _MP4_CODECS else b""
    return AudioHeaders(codec, private, entry, depth)


def _matroska_headers(stream: AudioStream) -> tuple[str, bytes, int]:
    """Return (CodecID, CodecPrivate, BitDepth)."""
    header = _muxer_header(stream, "matroska")
    entry = first_ebml_element(header, _SEGMENT, _TRACKS, _ENTRY)
    if entry is not None:
        codec = first_ebml_element(entry, _CODEC_ID) or b""
        depth = ebml_number(first_ebml_element(entry, _AUDIO, _BIT_DEPTH) or b"")
        private = first_ebml_element(entry, _CODEC_PRIVATE) or b""
        return codec.decode("ascii", "replace"), private, depth
    # PyAV refuses some codecs that Matroska supports. The WAV muxer describes them alike.
    header = _muxer_header(stream, "wav")
    at = _WAVE_HEAD
    while at + _CHUNK_HEAD <= len(header):
        size = int.from_bytes(header[at + 4 : at + _CHUNK_HEAD], "little")
        if header[at : at + 4] == b"fmt ":
            return _ACM, header[at + _CHUNK_HEAD : at + _CHUNK_HEAD + size], 0
        at += _CHUNK_HEAD + size + size % 2
    return "", b"", 0


def _mp4_entry(stream: AudioStream, head: Sequence[Packet[AudioStream]]) -> bytes:
    described = _muxer_header(stream, "mp4", head, _MP4_OPTIONS)
    table = find_box(described, b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd")
    if table is None:
        return b""
    # Version, flags and the number of entries come first.
    return next((make_box(kind, body) for kind, body in parse_boxes(table[8:])), b"")


def _muxer_header(
    stream: AudioStream,
    container: str,
    head: Sequence[Packet[AudioStream]] = (),
    options: dict[str, str] | None = None,
) -> bytes:
    """Return the header that a muxer writes; empty if it refuses the codec."""
    written = io.BytesIO()
    try:
        with open_output(written, format=container, options=options or {}) as output:
            made = output.add_stream_from_template(stream)
            output.start_encoding()
            for number, packet in enumerate(head):
                copy = Packet(bytes(packet))
                copy.pts = copy.dts = packet.pts if packet.pts is not None else number
                copy.duration, copy.time_base = packet.duration or 0, packet.time_base
                copy.stream = made
                output.mux(copy)
    except MemoryError:
        raise
    except (FFmpegError, ValueError):
        return b""
    return written.getvalue()

"""How containers describe sound of any codec, as FFmpeg's muxers write it.

Muxers know far more codecs than `vfsd.codecs.containers.audio_entries`.  Their headers are taken
apart while the file is examined, so that views can be planned from the catalog alone.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from av.audio.stream import AudioStream
from av.error import FFmpegError
from av.packet import Packet

from vfsd.codecs.containers import ebml
from vfsd.codecs.containers.isobmff import box, boxes, first_box
from vfsd.codecs.pyav import open_output

_SEGMENT, _TRACKS, _ENTRY = 0x18538067, 0x1654AE6B, 0xAE
_CODEC_ID, _CODEC_PRIVATE = 0x86, 0x63A2
_AUDIO, _BIT_DEPTH = 0xE1, 0x6264
_ACM = "A_MS/ACM"
"""Sound whose CodecPrivate is a WAVEFORMATEX structure."""
_WAVE_HEAD = 12  # RIFF, size, WAVE
_MP4_CODECS = frozenset({"eac3", "dts", "qcelp"})
"""Codecs that have a registered form in MP4, apart from those of `soundentries`."""
_MP4_OPTIONS = {"movflags": "empty_moov+delay_moov+default_base_moof"}
_CHUNK_HEAD = 8


@dataclass(frozen=True, slots=True)
class SoundHeaders:
    """Empty where the container does not take the codec."""

    matroska_codec: str  #: CodecID
    matroska_private: bytes  #: CodecPrivate
    mp4_entry: bytes  #: the sample entry, a whole box
    bit_depth: int  #: BitDepth of Matroska; 0: not written


def sound_headers(stream: AudioStream, head: Sequence[Packet[AudioStream]]) -> SoundHeaders:
    """How Matroska and MP4 describe `stream`, which begins with the packets `head`."""
    codec, private, depth = _matroska(stream)
    name = stream.codec_context.codec.canonical_name
    entry = _mp4(stream, head) if name in _MP4_CODECS else b""
    return SoundHeaders(codec, private, entry, depth)


def _matroska(stream: AudioStream) -> tuple[str, bytes, int]:
    """(CodecID, CodecPrivate, BitDepth)."""
    header = _header(stream, "matroska")
    entry = ebml.first(header, _SEGMENT, _TRACKS, _ENTRY)
    if entry is not None:
        codec = ebml.first(entry, _CODEC_ID) or b""
        depth = ebml.number(ebml.first(entry, _AUDIO, _BIT_DEPTH) or b"")
        private = ebml.first(entry, _CODEC_PRIVATE) or b""
        return codec.decode("ascii", "replace"), private, depth
    # PyAV does not let Matroska's muxer take all that FFmpeg's does: WAV's describes it alike.
    header = _header(stream, "wav")
    at = _WAVE_HEAD
    while at + _CHUNK_HEAD <= len(header):
        size = int.from_bytes(header[at + 4 : at + _CHUNK_HEAD], "little")
        if header[at : at + 4] == b"fmt ":
            return _ACM, header[at + _CHUNK_HEAD : at + _CHUNK_HEAD + size], 0
        at += _CHUNK_HEAD + size + size % 2
    return "", b"", 0


def _mp4(stream: AudioStream, head: Sequence[Packet[AudioStream]]) -> bytes:
    described = _header(stream, "mp4", head, _MP4_OPTIONS)
    table = first_box(described, b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd")
    if table is None:
        return b""
    # Version and flags, and how many entries there are, come first.
    return next((box(kind, body) for kind, body in boxes(table[8:])), b"")


def _header(
    stream: AudioStream,
    container: str,
    head: Sequence[Packet[AudioStream]] = (),
    options: dict[str, str] | None = None,
) -> bytes:
    """What a muxer writes ahead of packets; empty where it does not take the codec."""
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

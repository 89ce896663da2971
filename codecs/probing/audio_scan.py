"""Scans the audio of a file: the offset, size and timestamps of each packet.

Codec headers come from FFmpeg's Matroska and MP4 muxers, which describe a stream of any codec.
"""

from __future__ import annotations

import io
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Disposition

from vfsd.codecs.audio.audio_decoder import SPLITTING_CONTAINERS, AudioUnits, has_adts_headers
from vfsd.codecs.containers.detect_container import Container
from vfsd.codecs.containers.tracks import find_box, make_box, parse_boxes
from vfsd.codecs.decoding.demuxer import demux_packets, discard_other_streams, open_container
from vfsd.codecs.probing.packet_scan import NO_TIMESTAMP, PayloadLocator
from vfsd.codecs.pyav import exact_fraction, open_output, readable_tags
from vfsd.core.frame_table_pages import Ints, PacketColumns, PacketFlag
from vfsd.core.model import Access, Sound
from vfsd.disk.checksums import MediaSource

_Progress = Callable[[int, int], None]

# Codecs that need a configuration before any packet.
_CONFIGURED = frozenset({"aac", "opus", "flac", "vorbis", "alac"})
# Bytes of the first AC-3 packet that serve as its configuration.
_HEAD_BYTES = 16
# Packets for muxers that derive the description of a codec from its packets.
_HEAD_PACKETS = 16
MAX_AUDIO_PACKETS = 1 << 26
"""Most packets of an audio stream; larger streams are omitted."""
_PROGRESS_PACKETS = 4096
# Finer ticks per tick, used if several packets share a timestamp.
_FINER_TICKS = 64


@dataclass(frozen=True)
class AudioScan:
    """The audio of a file and its packets; no packets if it cannot be used."""

    sound: Sound
    columns: PacketColumns


class _UnusableAudioError(Exception):
    """The reason why views omit the audio of a file."""


class _SplitPacketError(Exception):
    """A packet is not contiguous in the file."""


def scan_audio(
    source: MediaSource, container: Container, on_progress: _Progress | None = None
) -> AudioScan | None:
    """Return the audio that views of a file may carry; None if there is no audio stream."""
    is_cut = not container.sliced or container.name in SPLITTING_CONTAINERS
    for access in (Access.DEMUX,) if is_cut else (Access.EXTENT, Access.DEMUX):
        try:
            with open_container(source, container.name) as opened:
                if not opened.streams.audio:
                    return None
                stream = _chosen_stream(opened)
                try:
                    _require_usable(stream)
                    discard_other_streams(opened, stream)
                    return _scan_stream(source, opened, stream, access, on_progress)
                except _SplitPacketError:
                    continue
                except _UnusableAudioError as reason:
                    return unusable_audio(_codec_name(stream), stream.index, str(reason))
        except FFmpegError as error:
            return unusable_audio("unknown", -1, f"the audio cannot be read: {error.strerror}")
    raise AssertionError("demuxed packets are complete")


def unusable_audio(codec: str, stream_index: int, reason: str) -> AudioScan:
    """Return the description of audio that views omit."""
    nothing = np.empty(0, np.int64)
    sound = Sound(codec=codec, stream_index=stream_index, reason=reason)
    return AudioScan(
        sound, PacketColumns(nothing, nothing, nothing, nothing, nothing.astype(np.uint8))
    )


def _chosen_stream(opened: InputContainer) -> AudioStream:
    streams = opened.streams.audio
    preferred = [one for one in streams if one.disposition & Disposition.default]
    return (preferred or list(streams))[0]


def _codec_name(stream: AudioStream) -> str:
    context: Any = stream.codec_context
    return "unknown" if context is None else str(context.codec.canonical_name)


def _require_usable(stream: AudioStream) -> None:
    codec, context = _codec_name(stream), stream.codec_context
    if context is None:
        raise _UnusableAudioError("the codec is unknown")
    if codec in _CONFIGURED and not (context.extradata or has_adts_headers(stream)):
        raise _UnusableAudioError(f"{codec} has no configuration before its packets")
    if not context.sample_rate or not context.channels or not stream.time_base:
        raise _UnusableAudioError("the sample rate or the channels are unknown")


@dataclass(frozen=True, slots=True)
class _ScannedPacket:
    """An audio packet; times are in ticks of its stream."""

    pts: int | None
    duration: int  #: 0: unknown
    position: int
    payload: bytes
    form: bytes  #: equal for packets that are decoded in the same way
    configuration: bytes  #: configuration within the packet


def _sliced_packets(
    source: MediaSource,
    opened: InputContainer,
    stream: AudioStream,
    head: list[Packet[AudioStream]],
) -> Iterable[_ScannedPacket]:
    """Yield packets that are contiguous in the file. Raises `_SplitPacketError` for any other."""
    if has_adts_headers(stream):
        raise _SplitPacketError
    slices = PayloadLocator(source, True)
    for packet in demux_packets(opened, stream):
        if packet.has_sidedata("encryption_info"):
            raise _UnusableAudioError("the audio is encrypted")
        if len(head) < _HEAD_PACKETS:
            head.append(packet)
        payload = bytes(packet)
        at = slices.position(packet, payload)
        if payload and not slices.holds:
            raise _SplitPacketError
        changed = packet.has_sidedata("new_extradata")
        form = bytes(packet.get_sidedata("new_extradata")) if changed else b""
        yield _ScannedPacket(packet.pts, max(0, packet.duration or 0), at, payload, form, b"")


def _demuxed_packets(
    opened: InputContainer, stream: AudioStream, head: list[Packet[AudioStream]]
) -> Iterable[_ScannedPacket]:
    for packet in AudioUnits(opened, stream, head=head, max_head=_HEAD_PACKETS):
        yield _ScannedPacket(
            packet.pts,
            packet.duration,
            packet.position,
            packet.payload,
            packet.form,
            packet.configuration,
        )


def _until_error(packets: Iterable[_ScannedPacket]) -> Iterator[_ScannedPacket]:
    """Yield packets up to an error, as at the end of a file that is cut off."""
    is_any = False
    try:
        for packet in packets:
            is_any = True
            yield packet
    except FFmpegError:
        if not is_any:
            raise


def _scan_stream(
    source: MediaSource,
    opened: InputContainer,
    stream: AudioStream,
    access: Access,
    on_progress: _Progress | None,
) -> AudioScan:
    head: list[Packet[AudioStream]] = []
    if access is Access.EXTENT:
        packets = _sliced_packets(source, opened, stream, head)
    else:
        packets = _demuxed_packets(opened, stream, head)
    pts, lasting, position, size = (array("q") for _ in range(4))
    first: _ScannedPacket | None = None
    total = source.size
    for packet in _until_error(packets):
        if not packet.payload:
            continue
        first = first or packet
        if packet is not first and packet.form != first.form and packet.form:
            raise _UnusableAudioError("the configuration changes within the stream")
        pts.append(NO_TIMESTAMP if packet.pts is None else packet.pts)
        lasting.append(packet.duration)
        position.append(packet.position)
        size.append(len(packet.payload))
        if len(pts) > MAX_AUDIO_PACKETS:
            raise _UnusableAudioError(f"the stream has more than {MAX_AUDIO_PACKETS} packets")
        if on_progress and len(pts) % _PROGRESS_PACKETS == 0:
            on_progress(min(total, max(0, packet.position)), total)
    if first is None:
        raise _UnusableAudioError("the stream has no packets")
    ticks = exact_fraction(stream.time_base)
    assert ticks is not None
    times, end, base = _spread_times(_int_array(pts), _int_array(lasting), ticks)
    sound = _audio_description(stream, first, audio_headers(stream, head), access, base)
    flags = np.full(len(times), int(PacketFlag.KEY), np.uint8)
    columns = PacketColumns(times, times, _int_array(position), _int_array(size), flags)
    description = replace(sound, packets=len(times), first_pts=int(times[0]), end_pts=end)
    return AudioScan(description, columns)


def _audio_description(
    stream: AudioStream,
    first: _ScannedPacket,
    headers: AudioHeaders,
    access: Access,
    base: Fraction,
) -> Sound:
    context = stream.codec_context
    codec = _codec_name(stream)
    configuration = first.configuration or context.extradata or b""
    return Sound(
        codec=codec,
        stream_index=stream.index,
        time_base=base,
        sample_rate=context.sample_rate,
        channels=context.channels,
        bit_depth=_bit_depth(stream, headers),
        configuration=first.payload[:_HEAD_BYTES] if codec in ("ac3", "eac3") else configuration,
        language=(readable_tags(stream).get("language") or "")[:16] or None,
        access=access,
        matroska_codec=headers.matroska_codec,
        matroska_private=headers.matroska_private,
        mp4_entry=headers.mp4_entry,
    )


def _spread_times(pts: Ints, lasting: Ints, base: Fraction) -> tuple[Ints, int, Fraction]:
    """Return (start of each packet, strictly ascending; end of the last; seconds per tick).

    Containers omit timestamps where one block holds several packets, and repeat them where packets
    are shorter than a tick. Such packets are spread evenly up to the next timestamp.
    """
    stamped = np.flatnonzero(pts != NO_TIMESTAMP)
    if not len(stamped):
        raise _UnusableAudioError("the packets have no timestamps")
    steps = np.diff(pts[stamped])
    if (steps < 0).any():
        raise _UnusableAudioError("the timestamps run backwards")
    usual = _usual_step(pts, lasting, stamped)
    if len(stamped) == len(pts) and (steps > 0).all():
        last = int(lasting[-1]) or round(usual)
        return pts, int(pts[-1]) + max(1, last), base
    exact = stamped[np.concatenate(([True], steps > 0))]  # the first packet of each timestamp
    numbers = np.arange(len(pts))
    inside = np.interp(numbers, exact, pts[exact].astype(np.float64) * _FINER_TICKS)
    after = (numbers - exact[-1]).clip(0) * usual * _FINER_TICKS
    before = (exact[0] - numbers).clip(0) * usual * _FINER_TICKS
    times = np.rint(inside + after - before).astype(np.int64)
    times[exact] = pts[exact] * _FINER_TICKS
    if (np.diff(times) <= 0).any():
        raise _UnusableAudioError("too many packets share one timestamp")
    return times, int(times[-1]) + max(1, round(usual * _FINER_TICKS)), base / _FINER_TICKS


def _usual_step(pts: Ints, lasting: Ints, stamped: Ints) -> float:
    """Return the average ticks between packets."""
    spread = int(pts[stamped[-1]] - pts[stamped[0]])
    if spread > 0:
        return spread / int(stamped[-1] - stamped[0])
    durations = lasting[lasting > 0]
    return float(np.median(durations)) if len(durations) else 1.0


def _bit_depth(stream: AudioStream, headers: AudioHeaders) -> int:
    """Return bits per stored sample; 0 for lossy codecs.

    Packets of TTA in Matroska cannot be decoded without it.
    """
    codec = _codec_name(stream)
    if codec.startswith("pcm"):  # pcm_s24le decodes to 32 bits, so the name decides
        digits = re.search(r"[0-9]+", codec)
        return int(digits[0]) if digits else 8
    return headers.bit_depth if stream.codec_context.codec.lossless else 0


def _int_array(values: array[int]) -> Ints:
    return np.frombuffer(values, np.int64).copy()


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
# The CodecID of audio with a WAVEFORMATEX structure as CodecPrivate.
_ACM = "A_MS/ACM"
_WAVE_HEAD = 12  # RIFF, size, WAVE
# Codecs with a registered form in MP4, besides those of `audio_entries`.
_MP4_CODECS = frozenset({"eac3", "dts", "qcelp"})
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

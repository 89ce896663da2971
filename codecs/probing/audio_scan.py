"""One demuxer pass over the audio of a file: the offset, size and timestamps of each packet."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Disposition

from vfsd.codecs.audio.audio_packets import SPLITTING_CONTAINERS, AudioUnits, has_adts_headers
from vfsd.codecs.audio.codec_headers import AudioHeaders, audio_headers
from vfsd.codecs.containers.detect_container import Container
from vfsd.codecs.decoding.demuxer import demux_packets, discard_other_streams, open_container
from vfsd.codecs.probing.packet_scan import NO_TIMESTAMP, PayloadLocator
from vfsd.codecs.pyav import exact_fraction, readable_tags
from vfsd.core.frame_table_pages import Ints, PacketColumns, PacketFlag
from vfsd.core.model import Access, Sound
from vfsd.disk.checksummed_file import MediaSource

_Progress = Callable[[int, int], None]

_CONFIGURED = frozenset({"aac", "opus", "flac", "vorbis", "alac"})
"""Codecs that need a configuration before any packet."""
_HEAD_BYTES = 16
"""Bytes of the first AC-3 packet that serve as its configuration."""
_HEAD_PACKETS = 16
"""Packets for muxers that derive the description of a codec from its packets."""
MAX_AUDIO_PACKETS = 1 << 26
"""Most packets of an audio stream; larger streams are omitted."""
_PROGRESS_PACKETS = 4096
_FINER_TICKS = 64
"""Finer ticks per tick, used if several packets share a timestamp."""


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
    for packet in AudioUnits(opened, stream, head=head, most=_HEAD_PACKETS):
        yield _ScannedPacket(
            packet.pts,
            packet.duration,
            packet.position,
            packet.payload,
            packet.form,
            packet.configuration,
        )


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
    for packet in packets:
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
    times, end, base = _settled_times(_int_array(pts), _int_array(lasting), ticks)
    sound = _audio_description(stream, first, audio_headers(stream, head), access, base)
    flags = np.full(len(times), int(PacketFlag.KEY), np.uint8)
    columns = PacketColumns(times, times, _int_array(position), _int_array(size), flags)
    reported = replace(sound, packets=len(times), first_pts=int(times[0]), end_pts=end)
    return AudioScan(reported, columns)


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


def _settled_times(pts: Ints, lasting: Ints, base: Fraction) -> tuple[Ints, int, Fraction]:
    """Return (start of each packet, strictly ascending; end of the last; seconds per tick).

    Containers omit timestamps where one block holds several packets, and repeat them where packets
    are shorter than a tick. Such packets are spread evenly up to the next timestamp.
    """
    known = np.flatnonzero(pts != NO_TIMESTAMP)
    if not len(known):
        raise _UnusableAudioError("the packets have no timestamps")
    steps = np.diff(pts[known])
    if (steps < 0).any():
        raise _UnusableAudioError("the timestamps run backwards")
    usual = _usual_step(pts, lasting, known)
    if len(known) == len(pts) and (steps > 0).all():
        last = int(lasting[-1]) or round(usual)
        return pts, int(pts[-1]) + max(1, last), base
    exact = known[np.concatenate(([True], steps > 0))]  # the first packet of each timestamp
    numbers = np.arange(len(pts))
    inside = np.interp(numbers, exact, pts[exact].astype(np.float64) * _FINER_TICKS)
    after = (numbers - exact[-1]).clip(0) * usual * _FINER_TICKS
    before = (exact[0] - numbers).clip(0) * usual * _FINER_TICKS
    times = np.rint(inside + after - before).astype(np.int64)
    times[exact] = pts[exact] * _FINER_TICKS
    if (np.diff(times) <= 0).any():
        raise _UnusableAudioError("too many packets share one timestamp")
    return times, int(times[-1]) + max(1, round(usual * _FINER_TICKS)), base / _FINER_TICKS


def _usual_step(pts: Ints, lasting: Ints, known: Ints) -> float:
    """Return the average ticks between packets."""
    spread = int(pts[known[-1]] - pts[known[0]])
    if spread > 0:
        return spread / int(known[-1] - known[0])
    reported = lasting[lasting > 0]
    return float(np.median(reported)) if len(reported) else 1.0


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

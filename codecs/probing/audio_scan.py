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
from vfsd.codecs.decoding.demuxer import (
    MediaSource,
    demux_packets,
    discard_other_streams,
    open_container,
)
from vfsd.codecs.probing.packet_scan import NO_TIMESTAMP, PayloadLocator
from vfsd.codecs.pyav import exact_fraction, readable_tags
from vfsd.core.frame_table_pages import Ints, PacketColumns, PacketFlag
from vfsd.core.model import Access, Sound

_Progress = Callable[[int, int], None]

_CONFIGURED = frozenset({"aac", "opus", "flac", "vorbis", "alac"})
"""Codecs that need a configuration ahead of all packets."""
_HEAD_BYTES = 16
"""Of the first packet of AC-3, which is its configuration."""
_HEAD_PACKETS = 16
"""So many are given to muxers that describe a codec by its packets."""
MAX_AUDIO_PACKETS = 1 << 26
"""A stream of sound with more of them is left out."""
_PROGRESS_PACKETS = 4096
_FINER_TICKS = 64
"""Ticks into which one is divided where several packets share a time stamp."""


@dataclass(frozen=True)
class AudioScan:
    """The sound of a file, and its packets; none where there is a reason against it."""

    sound: Sound
    columns: PacketColumns


class _UnusableAudioError(Exception):
    """Why the sound of a file is left out of views."""


class _SplitPacketError(Exception):
    """A packet does not lie in the file in one piece."""


def scan_audio(
    source: MediaSource, container: Container, on_progress: _Progress | None = None
) -> AudioScan | None:
    """The sound that views of a file may carry; None where it has no audio stream."""
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
            return unusable_audio("unknown", -1, f"it cannot be read: {error.strerror}")
    raise AssertionError("a demuxer gives packets whole")


def unusable_audio(codec: str, stream_index: int, reason: str) -> AudioScan:
    """What is told of sound that views do not carry."""
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
        raise _UnusableAudioError("its codec is not known")
    if codec in _CONFIGURED and not (context.extradata or has_adts_headers(stream)):
        raise _UnusableAudioError(f"{codec} without a configuration ahead of its packets")
    if not context.sample_rate or not context.channels or not stream.time_base:
        raise _UnusableAudioError("its sample rate or channels are not told")


@dataclass(frozen=True, slots=True)
class _ScannedPacket:
    """What is noted of a packet of sound; ticks of its stream."""

    pts: int | None
    duration: int  #: 0: not told
    position: int
    payload: bytes
    form: bytes  #: the same for all packets that are decoded in the same way
    configuration: bytes  #: that was in the packet itself


def _sliced_packets(
    source: MediaSource,
    opened: InputContainer,
    stream: AudioStream,
    head: list[Packet[AudioStream]],
) -> Iterable[_ScannedPacket]:
    """Packets that lie in the file in one piece.  Raises `_CutUpError` for any other."""
    if has_adts_headers(stream):
        raise _SplitPacketError
    slices = PayloadLocator(source, True)
    for packet in demux_packets(opened, stream):
        if packet.has_sidedata("encryption_info"):
            raise _UnusableAudioError("it is encrypted")
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
            raise _UnusableAudioError("its configuration changes on the way")
        pts.append(NO_TIMESTAMP if packet.pts is None else packet.pts)
        lasting.append(packet.duration)
        position.append(packet.position)
        size.append(len(packet.payload))
        if len(pts) > MAX_AUDIO_PACKETS:
            raise _UnusableAudioError("its packets are too many")
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
    told = replace(sound, packets=len(times), first_pts=int(times[0]), end_pts=end)
    return AudioScan(told, columns)


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
    """(when each packet begins, strictly ascending; when the last one has sounded; seconds per
    tick).

    Containers leave time stamps out where one block holds several packets, and repeat them where
    packets are shorter than a tick.  Such packets are spread evenly up to the next time stamp.
    """
    known = np.flatnonzero(pts != NO_TIMESTAMP)
    if not len(known):
        raise _UnusableAudioError("its packets have no time stamps")
    steps = np.diff(pts[known])
    if (steps < 0).any():
        raise _UnusableAudioError("its time stamps are set back on the way")
    usual = _usual_step(pts, lasting, known)
    if len(known) == len(pts) and (steps > 0).all():
        last = int(lasting[-1]) or round(usual)
        return pts, int(pts[-1]) + max(1, last), base
    exact = known[np.concatenate(([True], steps > 0))]  # the first of those with the same time
    numbers = np.arange(len(pts))
    inside = np.interp(numbers, exact, pts[exact].astype(np.float64) * _FINER_TICKS)
    after = (numbers - exact[-1]).clip(0) * usual * _FINER_TICKS
    before = (exact[0] - numbers).clip(0) * usual * _FINER_TICKS
    times = np.rint(inside + after - before).astype(np.int64)
    times[exact] = pts[exact] * _FINER_TICKS
    if (np.diff(times) <= 0).any():
        raise _UnusableAudioError("too many of its packets share one time stamp")
    return times, int(times[-1]) + max(1, round(usual * _FINER_TICKS)), base / _FINER_TICKS


def _usual_step(pts: Ints, lasting: Ints, known: Ints) -> float:
    """Ticks from a packet to the next, as a rule."""
    spread = int(pts[known[-1]] - pts[known[0]])
    if spread > 0:
        return spread / int(known[-1] - known[0])
    told = lasting[lasting > 0]
    return float(np.median(told)) if len(told) else 1.0


def _bit_depth(stream: AudioStream, headers: AudioHeaders) -> int:
    """Bits of a sample as it is stored; 0 for lossy codecs, which have none.

    TTA packets in Matroska cannot be decoded without it.
    """
    codec = _codec_name(stream)
    if codec.startswith("pcm"):  # pcm_s24le is decoded to 32
        digits = re.search(r"[0-9]+", codec)
        return int(digits[0]) if digits else 8
    return headers.bit_depth if stream.codec_context.codec.lossless else 0


def _int_array(values: array[int]) -> Ints:
    return np.frombuffer(values, np.int64).copy()

"""One pass of the demuxer over the sound of a file: where its packets lie, and when they sound.

One stream is kept: the one that the file prefers, or the first.  Where each packet lies in the file
in one piece, it is read from there; else the demuxer gives it (`vfsd.codecs.audio.pes`).
What speaks against the sound is told in words; it never speaks against the video.
"""

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

from vfsd.codecs.audio.headers import SoundHeaders, sound_headers
from vfsd.codecs.audio.pes import UNITED, UnitPackets, has_headers
from vfsd.codecs.containers.detect_container import Container
from vfsd.codecs.decoding.demuxer import Source, demuxed, discard_others, open_container
from vfsd.codecs.probing.packet_scan import NONE, Slices
from vfsd.codecs.pyav import exact, readable_tags
from vfsd.core.frame_table_pages import Ints, PacketColumns, PacketFlag
from vfsd.core.model import Access, Sound

Progress = Callable[[int, int], None]

_CONFIGURED = frozenset({"aac", "opus", "flac", "vorbis", "alac"})
"""Codecs that need a configuration ahead of all packets."""
_HEAD_BYTES = 16
"""Of the first packet of AC-3, which is its configuration."""
_HEAD_PACKETS = 16
"""So many are given to muxers that describe a codec by its packets."""
MOST_PACKETS = 1 << 26
"""A stream of sound with more of them is left out."""
_PROGRESS_PACKETS = 4096
_FINER = 64
"""Ticks into which one is divided where several packets share a time stamp."""


@dataclass(frozen=True)
class SoundScan:
    """The sound of a file, and its packets; none where there is a reason against it."""

    sound: Sound
    columns: PacketColumns


class _UnfitError(Exception):
    """Why the sound of a file is left out of views."""


class _CutUpError(Exception):
    """A packet does not lie in the file in one piece."""


def scan_sound(
    source: Source, container: Container, on_progress: Progress | None = None
) -> SoundScan | None:
    """The sound that views of a file may carry; None where it has no audio stream."""
    is_cut = not container.sliced or container.name in UNITED
    for access in (Access.DEMUX,) if is_cut else (Access.EXTENT, Access.DEMUX):
        try:
            with open_container(source, container.name) as opened:
                if not opened.streams.audio:
                    return None
                stream = _chosen(opened)
                try:
                    _require_fit(stream)
                    discard_others(opened, stream)
                    return _scanned(source, opened, stream, access, on_progress)
                except _CutUpError:
                    continue
                except _UnfitError as reason:
                    return without_sound(_codec(stream), stream.index, str(reason))
        except FFmpegError as error:
            return without_sound("unknown", -1, f"it cannot be read: {error.strerror}")
    raise AssertionError("a demuxer gives packets whole")


def without_sound(codec: str, stream_index: int, reason: str) -> SoundScan:
    """What is told of sound that views do not carry."""
    nothing = np.empty(0, np.int64)
    sound = Sound(codec=codec, stream_index=stream_index, reason=reason)
    return SoundScan(
        sound, PacketColumns(nothing, nothing, nothing, nothing, nothing.astype(np.uint8))
    )


def _chosen(opened: InputContainer) -> AudioStream:
    streams = opened.streams.audio
    preferred = [one for one in streams if one.disposition & Disposition.default]
    return (preferred or list(streams))[0]


def _codec(stream: AudioStream) -> str:
    context: Any = stream.codec_context
    return "unknown" if context is None else str(context.codec.canonical_name)


def _require_fit(stream: AudioStream) -> None:
    codec, context = _codec(stream), stream.codec_context
    if context is None:
        raise _UnfitError("its codec is not known")
    if codec in _CONFIGURED and not (context.extradata or has_headers(stream)):
        raise _UnfitError(f"{codec} without a configuration ahead of its packets")
    if not context.sample_rate or not context.channels or not stream.time_base:
        raise _UnfitError("its sample rate or channels are not told")


@dataclass(frozen=True, slots=True)
class _Packet:
    """What is noted of a packet of sound; ticks of its stream."""

    pts: int | None
    duration: int  #: 0: not told
    position: int
    payload: bytes
    form: bytes  #: the same for all packets that are decoded in the same way
    configuration: bytes  #: that was in the packet itself


def _sliced(
    source: Source, opened: InputContainer, stream: AudioStream, head: list[Packet[AudioStream]]
) -> Iterable[_Packet]:
    """Packets that lie in the file in one piece.  Raises `_CutUpError` for any other."""
    if has_headers(stream):
        raise _CutUpError
    slices = Slices(source, True)
    for packet in demuxed(opened, stream):
        if packet.has_sidedata("encryption_info"):
            raise _UnfitError("it is encrypted")
        if len(head) < _HEAD_PACKETS:
            head.append(packet)
        payload = bytes(packet)
        at = slices.position(packet, payload)
        if payload and not slices.holds:
            raise _CutUpError
        changed = packet.has_sidedata("new_extradata")
        form = bytes(packet.get_sidedata("new_extradata")) if changed else b""
        yield _Packet(packet.pts, max(0, packet.duration or 0), at, payload, form, b"")


def _from_demuxer(
    opened: InputContainer, stream: AudioStream, head: list[Packet[AudioStream]]
) -> Iterable[_Packet]:
    for packet in UnitPackets(opened, stream, head=head, most=_HEAD_PACKETS):
        yield _Packet(
            packet.pts,
            packet.duration,
            packet.position,
            packet.payload,
            packet.form,
            packet.configuration,
        )


def _scanned(
    source: Source,
    opened: InputContainer,
    stream: AudioStream,
    access: Access,
    on_progress: Progress | None,
) -> SoundScan:
    head: list[Packet[AudioStream]] = []
    if access is Access.EXTENT:
        packets = _sliced(source, opened, stream, head)
    else:
        packets = _from_demuxer(opened, stream, head)
    pts, lasting, position, size = (array("q") for _ in range(4))
    first: _Packet | None = None
    total = source.size
    for packet in packets:
        if not packet.payload:
            continue
        first = first or packet
        if packet is not first and packet.form != first.form and packet.form:
            raise _UnfitError("its configuration changes on the way")
        pts.append(NONE if packet.pts is None else packet.pts)
        lasting.append(packet.duration)
        position.append(packet.position)
        size.append(len(packet.payload))
        if len(pts) > MOST_PACKETS:
            raise _UnfitError("its packets are too many")
        if on_progress and len(pts) % _PROGRESS_PACKETS == 0:
            on_progress(min(total, max(0, packet.position)), total)
    if first is None:
        raise _UnfitError("the stream has no packets")
    ticks = exact(stream.time_base)
    assert ticks is not None
    times, end, base = _settled(_ints(pts), _ints(lasting), ticks)
    sound = _described(stream, first, sound_headers(stream, head), access, base)
    flags = np.full(len(times), int(PacketFlag.KEY), np.uint8)
    columns = PacketColumns(times, times, _ints(position), _ints(size), flags)
    told = replace(sound, packets=len(times), first_pts=int(times[0]), end_pts=end)
    return SoundScan(told, columns)


def _described(
    stream: AudioStream, first: _Packet, headers: SoundHeaders, access: Access, base: Fraction
) -> Sound:
    context = stream.codec_context
    codec = _codec(stream)
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


def _settled(pts: Ints, lasting: Ints, base: Fraction) -> tuple[Ints, int, Fraction]:
    """(when each packet begins, strictly ascending; when the last one has sounded; seconds per
    tick).

    Containers leave time stamps out where one block holds several packets, and repeat them where
    packets are shorter than a tick.  Such packets are spread evenly up to the next time stamp.
    """
    known = np.flatnonzero(pts != NONE)
    if not len(known):
        raise _UnfitError("its packets have no time stamps")
    steps = np.diff(pts[known])
    if (steps < 0).any():
        raise _UnfitError("its time stamps are set back on the way")
    usual = _usual_step(pts, lasting, known)
    if len(known) == len(pts) and (steps > 0).all():
        last = int(lasting[-1]) or round(usual)
        return pts, int(pts[-1]) + max(1, last), base
    exact = known[np.concatenate(([True], steps > 0))]  # the first of those with the same time
    numbers = np.arange(len(pts))
    inside = np.interp(numbers, exact, pts[exact].astype(np.float64) * _FINER)
    after = (numbers - exact[-1]).clip(0) * usual * _FINER
    before = (exact[0] - numbers).clip(0) * usual * _FINER
    times = np.rint(inside + after - before).astype(np.int64)
    times[exact] = pts[exact] * _FINER
    if (np.diff(times) <= 0).any():
        raise _UnfitError("too many of its packets share one time stamp")
    return times, int(times[-1]) + max(1, round(usual * _FINER)), base / _FINER


def _usual_step(pts: Ints, lasting: Ints, known: Ints) -> float:
    """Ticks from a packet to the next, as a rule."""
    spread = int(pts[known[-1]] - pts[known[0]])
    if spread > 0:
        return spread / int(known[-1] - known[0])
    told = lasting[lasting > 0]
    return float(np.median(told)) if len(told) else 1.0


def _bit_depth(stream: AudioStream, headers: SoundHeaders) -> int:
    """Bits of a sample as it is stored; 0 for lossy codecs, which have none.

    TTA packets in Matroska cannot be decoded without it.
    """
    codec = _codec(stream)
    if codec.startswith("pcm"):  # pcm_s24le is decoded to 32
        digits = re.search(r"[0-9]+", codec)
        return int(digits[0]) if digits else 8
    return headers.bit_depth if stream.codec_context.codec.lossless else 0


def _ints(values: array[int]) -> Ints:
    return np.frombuffer(values, np.int64).copy()

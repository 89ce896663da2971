"""One pass of the demuxer over the sound of a file: where its packets lie, and when they sound.

One stream is kept: the one that the file prefers, or the first.  Views carry its packets as they
are, so that only those count which lie in the file in one piece, or can be had whole from the
demuxer (`vfsd.codecs.sound.soundunits`), one after the other in time.  What speaks against it is
told in words; it never speaks against the video.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError
from av.stream import Disposition

from vfsd.codecs.containers.sniff import Container
from vfsd.codecs.decoding.source import Source, demuxed, discard_others, open_container
from vfsd.codecs.examining.scan import Slices
from vfsd.codecs.pyav import exact, readable_tags
from vfsd.codecs.sound.soundunits import UNITED, UnitPackets
from vfsd.framepages import Ints, PacketColumns, PacketFlag
from vfsd.model import Sound

Progress = Callable[[int, int], None]

CODECS = frozenset(
    {"aac", "mp3", "mp2", "ac3", "eac3", "opus", "flac", "vorbis", "alac"}
    | {"pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_u8", "pcm_f32le"}
)
"""What at least one kind of container that views are made in takes."""

_CONFIGURED = frozenset({"aac", "opus", "flac", "vorbis", "alac"})
"""Codecs that need a configuration ahead of all packets."""
_HEAD_BYTES = 16
"""Of the first packet of AC-3, which is its configuration."""
MOST_PACKETS = 1 << 26
"""A stream of sound with more of them is left out."""
_PROGRESS_PACKETS = 4096


@dataclass(frozen=True)
class SoundScan:
    """The sound of a file, and its packets; none where there is a reason against it."""

    sound: Sound
    columns: PacketColumns


class _UnfitError(Exception):
    """Why the sound of a file is left out of views."""


def scan_sound(
    source: Source, container: Container, on_progress: Progress | None = None
) -> SoundScan | None:
    """The sound that views of a file may carry; None where it has no audio stream."""
    try:
        with open_container(source, container.name) as opened:
            if not opened.streams.audio:
                return None
            stream = _chosen(opened)
            try:
                _require_fit(container, stream)
                discard_others(opened, stream)
                if container.name in UNITED:
                    return _scanned_units(source, opened, stream, on_progress)
                return _scanned(source, container, opened, stream, on_progress)
            except _UnfitError as reason:
                return without_sound(_codec(stream), stream.index, str(reason))
    except FFmpegError as error:
        return without_sound("unknown", -1, f"it cannot be read: {error.strerror}")


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


def _require_fit(container: Container, stream: AudioStream) -> None:
    codec = _codec(stream)
    if codec not in CODECS:
        raise _UnfitError(f"no container of views takes {codec}")
    is_united = container.name in UNITED
    if not (container.sliced or is_united):
        raise _UnfitError(f"{container.name} files cut packets up")
    if not (container.timed or is_united):
        raise _UnfitError(f"{container.name} files do not time pictures")
    context = stream.codec_context
    has_headers = is_united and codec == "aac"
    if codec in _CONFIGURED and not (context.extradata or has_headers):
        raise _UnfitError(f"{codec} without a configuration ahead of its packets")
    if not context.sample_rate or not context.channels or not stream.time_base:
        raise _UnfitError("its sample rate or channels are not told")


def _scanned(
    source: Source,
    container: Container,
    opened: InputContainer,
    stream: AudioStream,
    on_progress: Progress | None,
) -> SoundScan:
    slices = Slices(source, container.sliced)
    pts, position, size = array("q"), array("q"), array("q")
    head, duration = b"", 0
    total = source.size
    for packet in demuxed(opened, stream):
        payload = bytes(packet)
        if packet.has_sidedata("encryption_info"):
            raise _UnfitError("it is encrypted")
        if packet.has_sidedata("new_extradata") and pts:
            raise _UnfitError("its configuration changes on the way")
        if packet.pts is None or not payload:
            raise _UnfitError("not every packet has a time stamp")
        if pts and packet.pts <= pts[-1]:
            raise _UnfitError("its time stamps are set back on the way")
        at = slices.position(packet, payload)
        if not slices.holds:
            raise _UnfitError("its packets do not lie in the file in one piece")
        head = head or payload[:_HEAD_BYTES]
        pts.append(packet.pts)
        position.append(at)
        size.append(len(payload))
        duration = max(0, packet.duration or 0)
        if len(pts) > MOST_PACKETS:
            raise _UnfitError("its packets are too many")
        if on_progress and len(pts) % _PROGRESS_PACKETS == 0:
            on_progress(min(total, at), total)
    if not pts:
        raise _UnfitError("it holds no packet")
    return _told(stream, head, duration, _ints(pts), _ints(position), _ints(size))


def _scanned_units(
    source: Source,
    opened: InputContainer,
    stream: AudioStream,
    on_progress: Progress | None,
) -> SoundScan:
    pts, position, size = array("q"), array("q"), array("q")
    head, form, configuration, duration = b"", b"", b"", 0
    total = source.size
    for packet in UnitPackets(opened, stream):
        if pts and packet.form != form:
            raise _UnfitError("its configuration changes on the way")
        if packet.pts is None or not packet.payload:
            raise _UnfitError("not every packet has a time stamp")
        if pts and packet.pts <= pts[-1]:
            raise _UnfitError("its time stamps are set back on the way")
        if not pts:
            head, form = packet.payload[:_HEAD_BYTES], packet.form
            configuration = packet.configuration
        pts.append(packet.pts)
        position.append(packet.position)
        size.append(len(packet.payload))
        duration = packet.duration
        if len(pts) > MOST_PACKETS:
            raise _UnfitError("its packets are too many")
        if on_progress and len(pts) % _PROGRESS_PACKETS == 0:
            on_progress(min(total, max(0, packet.position)), total)
    if not pts:
        raise _UnfitError("it holds no packet")
    columns = _ints(pts), _ints(position), _ints(size)
    return _told(stream, head, duration, *columns, configuration)


def _told(
    stream: AudioStream,
    head: bytes,
    duration: int,
    pts: Ints,
    position: Ints,
    size: Ints,
    configuration: bytes = b"",
) -> SoundScan:
    context = stream.codec_context
    codec = _codec(stream)
    time_base = exact(stream.time_base)
    assert time_base is not None
    if not duration and len(pts) > 1:
        duration = int(np.median(np.diff(pts)))
    sound = Sound(
        codec=codec,
        stream_index=stream.index,
        time_base=time_base,
        sample_rate=context.sample_rate,
        channels=context.channels,
        bit_depth=context.format.bits if codec.startswith("pcm") else 0,
        configuration=head
        if codec in ("ac3", "eac3")
        else configuration or context.extradata or b"",
        packets=len(pts),
        first_pts=int(pts[0]),
        end_pts=int(pts[-1]) + max(1, duration),
        language=(readable_tags(stream).get("language") or "")[:16] or None,
    )
    flags = np.full(len(pts), int(PacketFlag.KEY), np.uint8)
    return SoundScan(sound, PacketColumns(pts, pts, position, size, flags))


def _ints(values: array[int]) -> Ints:
    return np.frombuffer(values, np.int64).copy()

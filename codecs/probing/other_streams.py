"""Whether what lies beside the pictures is the same in two files."""

from __future__ import annotations

import os
import zlib
from array import array
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from av.stream import Stream

from vfsd.codecs.decoding.demuxer import Source, open_every_track
from vfsd.codecs.pyav import tick_of
from vfsd.core.model import MediaInfo
from vfsd.errors import RefusedMediaError

_LASTING = ("subtitle", "data")
"""Kinds of streams whose packets are shown for as long as they say."""
_NONE = -(1 << 63)
"""In the place of a time that is not told."""
_ROUNDING = 1.001
"""Seconds as floats are exact enough for a thousandth of a tick."""


@dataclass(slots=True)
class _Content:
    """Of one stream."""

    name: str
    checksum: int = 0
    tick: Fraction = Fraction(0)  #: seconds
    times: array[int] = field(default_factory=lambda: array("q"))  #: ticks, one a packet
    durations: array[int] = field(default_factory=lambda: array("q"))  #: ticks, of some kinds


def require_same_beside(
    source: str | os.PathLike[str],
    media: MediaInfo,
    made: str | os.PathLike[str],
    made_media: MediaInfo,
) -> None:
    """Compare all streams but the pictures, byte for byte; times may differ by a tick.

    Raises `RefusedMediaError`.
    """
    if [replace(one, index=0) for one in media.side_streams] != [
        replace(one, index=0) for one in made_media.side_streams
    ]:
        raise RefusedMediaError("not every stream beside the pictures could be kept")
    old, new = _contents(source, media), _contents(made, made_media)
    for one, other in zip(old, new, strict=True):
        changed = _changed(one, other)
        if changed is not None:
            raise RefusedMediaError(f"{one.name} would not be the same: {changed} would change")


def _changed(one: _Content, other: _Content) -> str | None:
    """The part of a stream that is not the same in two files; None: all of it is."""
    if (len(one.times), one.checksum) != (len(other.times), other.checksum):
        return "its packets"
    tick = float(max(one.tick, other.tick)) * _ROUNDING
    for name, before, after in (
        ("their times", one.times, other.times),
        ("how long they last", one.durations, other.durations),
    ):
        ticks, others = np.frombuffer(before, np.int64), np.frombuffer(after, np.int64)
        told = ticks != _NONE
        apart = np.abs(ticks * float(one.tick) - others * float(other.tick))
        if (told != (others != _NONE)).any() or (apart[told] > tick).any():
            return name
    return None


def _contents(path: str | os.PathLike[str], media: MediaInfo) -> list[_Content]:
    """By the number of the stream."""
    if not media.side_streams:
        return []
    with Source(path) as source, open_every_track(source, media.container) as opened:
        others = [stream for stream in opened.streams if stream.index != media.stream_index]
        found = {stream.index: _Content(_named(stream)) for stream in others}
        for packet in opened.demux(others):
            if not packet.size and packet.pts is None and packet.dts is None:
                continue
            content = found[packet.stream_index]
            content.checksum = zlib.crc32(bytes(packet), content.checksum)
            content.tick = tick_of(packet)
            content.times.append(_NONE if packet.pts is None else packet.pts)
            if packet.stream.type in _LASTING:
                content.durations.append(packet.duration or 0)
        source.check()
        return [content for _, content in sorted(found.items())]


def _named(stream: Stream) -> str:
    context = stream.codec_context
    codec = "of an unknown codec" if context is None else context.codec.canonical_name
    return f"stream {stream.index} ({stream.type}, {codec})"

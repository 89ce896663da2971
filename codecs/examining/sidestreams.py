"""Whether what lies beside the pictures is the same in two files."""

from __future__ import annotations

import math
import os
import zlib
from dataclasses import dataclass, replace
from fractions import Fraction

from vfsd.codecs.decoding.source import Source, open_container
from vfsd.codecs.pyav import tick_of
from vfsd.errors import RefusedMediaError
from vfsd.model import MediaInfo


@dataclass(slots=True)
class _Content:
    """Of one stream."""

    packets: int = 0
    checksum: int = 0
    first: Fraction | None = None  #: seconds
    last: Fraction | None = None
    tick: Fraction = Fraction(0)


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
        tick = max(one.tick, other.tick)
        if (
            (one.packets, one.checksum) != (other.packets, other.checksum)
            or _apart(one.first, other.first) > tick
            or _apart(one.last, other.last) > tick
        ):
            raise RefusedMediaError("a stream beside the pictures would not be the same")


def _apart(one: Fraction | None, other: Fraction | None) -> float | Fraction:
    """Seconds between two times; infinite where only one of them is told."""
    if one is None or other is None:
        return 0 if one is other else math.inf
    return abs(one - other)


def _contents(path: str | os.PathLike[str], media: MediaInfo) -> list[_Content]:
    """By the number of the stream."""
    if not media.side_streams:
        return []
    with Source(path) as source, open_container(source, media.container) as opened:
        others = [stream for stream in opened.streams if stream.index != media.stream_index]
        found = {stream.index: _Content() for stream in others}
        for packet in opened.demux(others):
            if not packet.size and packet.pts is None and packet.dts is None:
                continue
            content = found[packet.stream_index]
            content.packets += 1
            content.checksum = zlib.crc32(bytes(packet), content.checksum)
            content.tick = tick_of(packet)
            if packet.pts is not None:
                seconds = packet.pts * content.tick
                content.first = seconds if content.first is None else content.first
                content.last = seconds
        source.check()
        return [content for _, content in sorted(found.items())]

"""HLS playlists (RFC 8216) of byte ranges of MP4 views."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from vfsd.core.capture_time import NS
from vfsd.core.timebase import iso_time
from vfsd.views.segment_layout import SegmentLayout
from vfsd.web.byte_ranges import view_tag

SEGMENT_SECONDS = 4
"""Least duration of the segments of a playlist; key frames may be farther apart."""


@dataclass(frozen=True, slots=True)
class PlaylistPart:
    """Consecutive segments of one view: tags of a playlist, without those before the part."""

    uri: str
    header: int  #: bytes of the initialization section
    time_base: Fraction  #: seconds of a tick
    starts: tuple[int, ...]
    """Start of each segment in ticks of the video's own timeline, and the end."""
    tags: tuple[str, ...]  #: of each segment, before its URI
    is_lasting: bool  #: whether the bytes stay the same as long as the video has its bytes

    @classmethod
    def of(cls, uri: str, layout: SegmentLayout) -> PlaylistPart:
        """Return all segments of a view."""
        layout = layout.merged(math.ceil(SEGMENT_SECONDS / layout.time_base))
        starts, offsets = layout.starts.tolist(), layout.offsets.tolist()
        tags = (
            f"#EXTINF:{float((after - start) * layout.time_base):.6f},\n"
            f"#EXT-X-BYTERANGE:{offsets[at + 1] - offsets[at]}@{offsets[at]}\n"
            for at, (start, after) in enumerate(pairwise(starts))
        )
        is_lasting = layout.version is None
        return cls(uri, layout.header, layout.time_base, tuple(starts), tuple(tags), is_lasting)

    @classmethod
    def from_json(cls, stored: Sequence[Any]) -> PlaylistPart:
        """Return the part that `to_json` was called on."""
        uri, header, (ticks, per), starts, tags = stored
        return cls(uri, header, Fraction(ticks, per), tuple(starts), tuple(tags), is_lasting=True)

    def to_json(self) -> list[Any]:
        """Return the values for JSON of a part that is lasting."""
        base = self.time_base.as_integer_ratio()
        return [self.uri, self.header, base, self.starts, self.tags]

    @property
    def longest(self) -> Fraction:
        """Seconds of the longest segment."""
        return max(after - start for start, after in pairwise(self.starts)) * self.time_base

    @property
    def seconds(self) -> Fraction:
        """The end of the last segment."""
        return self.starts[-1] * self.time_base

    def lines(self, shown: range) -> list[str]:
        """Return the lines of some segments."""
        return [tags + self.uri for tags in self.tags[shown.start : shown.stop]]

    def between(self, start: Fraction, end: Fraction) -> range:
        """Return the numbers of the segments that show ``start <= t < end``."""
        first, stop = start / self.time_base, end / self.time_base
        numbers = [
            number
            for number, (begin, after) in enumerate(pairwise(self.starts))
            if begin < stop and after > first
        ]
        return range(numbers[0], numbers[-1] + 1) if numbers else range(0)


def view_uri(name: str, view: str, digest: str, layout: SegmentLayout) -> str:
    """Return the URI of a view, which fails once the view has other bytes."""
    size = int(layout.offsets[-1])
    uri = f"/v/{quote(os.fsencode(name))}@/{quote(view)}?digest={digest[:16]}&size={size}"
    return uri if layout.version is None else f"{uri}&v={view_tag(layout.version, size)}"


def video_playlist(part: PlaylistPart) -> str:
    """Return the playlist of one view."""
    lines = part.lines(range(len(part.tags)))
    return _playlist([*_map_lines(part), *lines], part.longest, has_ended=True)


def timeline_playlist(
    parts: Iterable[tuple[PlaylistPart, int, int, int]], *, has_ended: bool
) -> str:
    """Return the playlist of several views, one after the other.

    Each view has the Unix time of its first frame, and of the first and the end of what is shown of
    it, in nanoseconds.  Without `has_ended`, players ask again for newer videos.
    """
    lines: list[str] = []
    longest = Fraction(SEGMENT_SECONDS)
    for part, origin_ns, start_ns, end_ns in parts:
        whole = start_ns <= origin_ns and end_ns >= origin_ns + int(part.seconds * NS)
        shown = (
            range(len(part.tags))
            if whole
            else part.between(Fraction(start_ns - origin_ns, NS), Fraction(end_ns - origin_ns, NS))
        )
        if not shown:
            continue
        if lines:
            lines.append("#EXT-X-DISCONTINUITY")
        moment = origin_ns + int(part.starts[shown.start] * part.time_base * NS)
        lines.append(f"#EXT-X-PROGRAM-DATE-TIME:{iso_time(moment)}")
        lines += _map_lines(part)
        lines += part.lines(shown)
        longest = max(longest, part.longest)
    return _playlist(lines, longest, has_ended=has_ended)


def _map_lines(part: PlaylistPart) -> list[str]:
    return [f'#EXT-X-MAP:URI="{part.uri}",BYTERANGE="{part.header}@0"']


def _playlist(lines: Sequence[str], longest: Fraction, *, has_ended: bool) -> str:
    return "\n".join(
        [
            "#EXTM3U",
            "#EXT-X-VERSION:7",
            f"#EXT-X-TARGETDURATION:{math.ceil(longest)}",
            f"#EXT-X-PLAYLIST-TYPE:{'VOD' if has_ended else 'EVENT'}",
            "#EXT-X-INDEPENDENT-SEGMENTS",
            *lines,
            *(["#EXT-X-ENDLIST"] if has_ended else []),
            "",
        ]
    )

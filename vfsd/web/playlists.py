"""HLS playlists (RFC 8216) of byte ranges of MP4 views."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from urllib.parse import quote

from vfsd.core.capture_time import NS
from vfsd.core.timebase import iso_time
from vfsd.views.segment_layout import SegmentLayout
from vfsd.web.byte_ranges import view_tag

SEGMENT_SECONDS = 4
"""Least duration of the segments of a playlist; key frames may be farther apart."""


@dataclass(frozen=True, slots=True)
class PlaylistPart:
    """Consecutive segments of one view: lines of a playlist, without the tags before the part."""

    uri: str
    header: int  #: bytes of the initialization section
    longest: Fraction  #: seconds of the longest segment
    lines: tuple[str, ...]  #: of each segment
    seconds: tuple[Fraction, ...]  #: start of each segment on the video's own timeline, and the end
    is_lasting: bool  #: whether the bytes stay the same as long as the video has its bytes

    @classmethod
    def of(cls, uri: str, layout: SegmentLayout) -> PlaylistPart:
        """Return all segments of a view."""
        layout = layout.merged(math.ceil(SEGMENT_SECONDS / layout.time_base))
        seconds, offsets = layout.seconds(), layout.offsets.tolist()
        lasting = [after - start for start, after in pairwise(seconds)]
        lines = (
            f"#EXTINF:{float(each):.6f},\n"
            f"#EXT-X-BYTERANGE:{offsets[at + 1] - offsets[at]}@{offsets[at]}\n{uri}"
            for at, each in enumerate(lasting)
        )
        is_lasting = layout.version is None
        return cls(uri, layout.header, max(lasting), tuple(lines), tuple(seconds), is_lasting)

    def between(self, start: Fraction, end: Fraction) -> range:
        """Return the numbers of the segments that show ``start <= t < end``."""
        numbers = [
            number
            for number, (first, after) in enumerate(
                zip(self.seconds, self.seconds[1:], strict=False)
            )
            if first < end and after > start
        ]
        return range(numbers[0], numbers[-1] + 1) if numbers else range(0)


def view_uri(name: str, view: str, digest: str, layout: SegmentLayout) -> str:
    """Return the URI of a view, which fails once the view has other bytes."""
    size = int(layout.offsets[-1])
    uri = f"/v/{quote(os.fsencode(name))}@/{quote(view)}?digest={digest[:16]}&size={size}"
    return uri if layout.version is None else f"{uri}&v={view_tag(layout.version, size)}"


def video_playlist(part: PlaylistPart) -> str:
    """Return the playlist of one view."""
    return _playlist([*_map_lines(part), *part.lines], part.longest, has_ended=True)


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
        whole = start_ns <= origin_ns and end_ns >= origin_ns + int(part.seconds[-1] * NS)
        shown = (
            range(len(part.lines))
            if whole
            else part.between(Fraction(start_ns - origin_ns, NS), Fraction(end_ns - origin_ns, NS))
        )
        if not shown:
            continue
        if lines:
            lines.append("#EXT-X-DISCONTINUITY")
        moment = origin_ns + int(part.seconds[shown.start] * NS)
        lines.append(f"#EXT-X-PROGRAM-DATE-TIME:{iso_time(moment)}")
        lines += _map_lines(part)
        lines += part.lines[shown.start : shown.stop]
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

"""`Recordings`: videos by the time of their recording, without overlaps."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from vfsd.core.capture_time import NS, CaptureClock, from_ns
from vfsd.errors import NotFoundError

if TYPE_CHECKING:
    from vfsd.core.model import LogicalVideo

SHORTEST_GAP = 1.0
"""Seconds: recorders lose some milliseconds between two files."""


@dataclass(frozen=True, slots=True)
class RecordedPart:
    """A video, and the time that it counts for: Unix nanoseconds, half-open."""

    video: LogicalVideo
    origin_ns: int  #: of the video's first frame
    start_ns: int
    end_ns: int
    clock: CaptureClock

    def seconds_at(self, ns: int) -> Fraction:
        """Return the time on the video's own timeline."""
        return Fraction(ns - self.origin_ns, NS)

    def span_within(self, start_ns: int, end_ns: int) -> tuple[Fraction, Fraction]:
        """Return the seconds of the video in a span of time that meets the part."""
        first = self.seconds_at(max(start_ns, self.start_ns))
        last = self.seconds_at(min(end_ns, self.end_ns))
        return first, min(last, self.video.original.duration)


class Recordings:
    """Videos by the time of their recording; where two overlap, the later start counts."""

    def __init__(self, name: str, videos: Iterable[LogicalVideo]) -> None:
        """`name` is for messages."""
        self.name = name
        known: list[RecordedPart] = []
        unknown: list[str] = []
        for video in videos:
            captured = video.captured
            if captured is None:
                unknown.append(video.name)
                continue
            end = captured.ns + math.floor(video.original.duration * NS)
            known.append(RecordedPart(video, captured.ns, captured.ns, end, captured.clock))
        known.sort(key=lambda part: (part.start_ns, part.video.name))
        self.unknown = tuple(unknown)  #: names of videos without a time of recording
        self.parts = tuple(_without_overlaps(known))  #: in the order of their starts
        seen = {part.video.name for part in self.parts}
        self.overlapped = tuple(part for part in known if part.video.name not in seen)
        """Videos without a frame that counts, since others cover them; each is one part."""
        self._starts = [part.start_ns for part in self.parts]

    def places(self, start_ns: int, end_ns: int) -> range:
        """Return the places in `parts` of those in a half-open span of time."""
        first = max(0, bisect_right(self._starts, start_ns) - 1)
        if self.parts and self.parts[first].end_ns <= start_ns:
            first += 1
        return range(first, bisect_right(self._starts, end_ns - 1))

    def place_at(self, ns: int) -> int | None:
        """Return the place in `parts` of the one at a time; None in a gap and outside."""
        return next(iter(self.places(ns, ns + 1)), None)

    def require_between(self, start_ns: int, end_ns: int) -> list[RecordedPart]:
        """Return the parts in a half-open span of time.  Raises `NotFoundError` for none."""
        found = [self.parts[place] for place in self.places(start_ns, end_ns)]
        if not found:
            raise self.missing_error(start_ns)
        return found

    def gaps_ns(self, at_least_ns: float) -> list[tuple[int, int]]:
        """Return the times without a video, between parts, that are that long."""
        return [
            (before.end_ns, after.start_ns)
            for before, after in pairwise(self.parts)
            if after.start_ns - before.end_ns >= max(at_least_ns, 1)
        ]

    def require_parts(self) -> tuple[RecordedPart, ...]:
        """Return `parts`.  Raises `NotFoundError` if there are none."""
        if self.parts:
            return self.parts
        raise NotFoundError(
            f"the timeline {self.name!r} has no video with a time of recording",
            hint="`vfsd captured` sets it",
        )

    def missing_error(self, ns: int) -> NotFoundError:
        """Return the error for a time without a video."""
        self.require_parts()
        return NotFoundError(
            f"the timeline {self.name!r} has no video at {from_ns(ns).isoformat()}",
            hint="`vfsd timeline`, `Timeline.gaps` and timeline.json list times without a video; "
            'for reads, missing="skip" leaves them out',
        )


TIMELINE_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "kind": "video, overlapped (others cover all of it), gap or unknown",
        "start": "Unix time in nanoseconds; null for an unknown time",
        "end": "Unix time in nanoseconds, exclusive; null for an unknown time",
        "seconds": "duration; null for an unknown time",
        "name": "path from the root of the store; null for a gap",
        "clock": "given, name, rtcp, arrival or container; null for a gap and for an unknown time",
    }
)


class TimelineRow(NamedTuple):
    """A line of `timeline`."""

    kind: str
    start: int | None
    end: int | None
    seconds: float | None
    name: str | None
    clock: str | None


def timeline_rows(found: Recordings, gap: float) -> list[TimelineRow]:
    """Videos and gaps of at least `gap` seconds by time, then the videos without a time."""
    rows = [
        *(_row("video", part.start_ns, part.end_ns, part) for part in found.parts),
        *(_row("overlapped", part.start_ns, part.end_ns, part) for part in found.overlapped),
        *(_row("gap", start, end) for start, end in found.gaps_ns(gap * NS)),
    ]
    rows.sort(key=lambda row: row.start or 0)
    return rows + [TimelineRow("unknown", None, None, None, name, None) for name in found.unknown]


def _row(kind: str, start: int, end: int, part: RecordedPart | None = None) -> TimelineRow:
    name, clock = (None, None) if part is None else (part.video.name, part.clock.value)
    return TimelineRow(kind, start, end, (end - start) / NS, name, clock)


def _without_overlaps(whole: Sequence[RecordedPart]) -> list[RecordedPart]:
    """Return the parts that count, in order: of several at one time, the last in `whole`."""
    return [
        RecordedPart(whole[place].video, whole[place].origin_ns, start, end, whole[place].clock)
        for place, start, end in span_parts([(part.start_ns, part.end_ns) for part in whole])
    ]


def span_parts(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return (place in `spans`, start, end) of the parts that count, in order.

    `spans` is sorted by start, half-open; of several at one time, the last one counts.  One with
    another inside becomes two parts.
    """
    points = sorted({at for span in spans for at in span})
    found: list[tuple[int, int, int]] = []
    active: list[int] = []  # a heap of negative places; the last span is first
    begun = 0
    for start, end in pairwise(points):
        while begun < len(spans) and spans[begun][0] <= start:
            heappush(active, -begun)
            begun += 1
        while active and spans[-active[0]][1] <= start:
            heappop(active)
        if not active:
            continue
        place = -active[0]
        if found and found[-1][0] == place and found[-1][2] == start:
            found[-1] = (place, found[-1][1], end)
        else:
            found.append((place, start, end))
    return found

"""Records of the videos of a camera by time, and of gaps."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from vfsd.core.capture_time import NS, to_ns

if TYPE_CHECKING:
    from vfsd.api.timeline import Timeline, TimelinePart


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


def timeline_row(kind: str, start: int, end: int, part: TimelinePart | None = None) -> TimelineRow:
    name, clock = (None, None) if part is None else (part.video.name, part.clock.value)
    return TimelineRow(kind, start, end, (end - start) / NS, name, clock)


def timeline_rows(found: Timeline, gap: float) -> list[TimelineRow]:
    """Videos and gaps of at least `gap` seconds by time, then the videos without a time."""
    rows = [
        *(timeline_row("video", part.start_ns, part.end_ns, part) for part in found.parts),
        *(
            timeline_row("overlapped", part.start_ns, part.end_ns, part)
            for part in found.overlapped
        ),
        *(timeline_row("gap", to_ns(start), to_ns(end)) for start, end in found.gaps(gap)),
    ]
    rows.sort(key=lambda row: row.start or 0)
    return rows + [TimelineRow("unknown", None, None, None, name, None) for name in found.unknown]

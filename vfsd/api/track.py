"""Tracks the boxes of a detector, and stores them with their tracks; see `VideoLabels.track`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vfsd.api.labels import find_boxes
from vfsd.core.detections import DetectionColumns, Floats, Ints, Source, source_from
from vfsd.core.frames import frame_ranges
from vfsd.core.label_query import Labels, clauses_of, format_labels
from vfsd.core.timebase import seconds
from vfsd.errors import NotFoundError, UsageError
from vfsd.labels.tracking import TrackerSettings, assign_tracks
from vfsd.read.read_context import VideoContext

if TYPE_CHECKING:
    from vfsd.core.timebase import Seconds

TRACKER = "track"
"""The name of the sources that the tracker makes."""


class Tracked(NamedTuple):
    """The result of `VideoLabels.track`."""

    source: Source  #: of the boxes with tracks
    boxes: int
    tracks: int
    frames: int  #: examined, with or without a box


def track(
    video: VideoContext,
    labels: Labels | None,
    source: str | Source | None,
    gap: Seconds,
    min_iou: float,
) -> Tracked:
    """See `VideoLabels.track`."""
    video.parts.require_writable()
    settings = TrackerSettings(_gap(gap), _overlap(min_iou))
    index, info = video.parts.catalog.detections, video.info
    rows, given = _of_one_source(video, labels, source)
    ranges = [one.frames for one in index.examined(info, given)]
    examined = [np.arange(one.start, one.stop) for one in ranges]
    steps = np.unique(np.concatenate([rows.frames, *examined]))
    ticks = video.table.pts_of(steps) - info.original.first_pts
    times: Floats = (ticks * float(info.original.time_base)).astype(np.float64)
    # Without labels, each label is a kind of its own; alternatives are names for one kind.
    kinds = rows.codes if labels is None else np.zeros(len(rows), np.int64)
    tracks = _tracks(rows, kinds, steps, times, settings)
    made = Source(
        TRACKER,
        "iou-kalman",
        "1",
        {
            "of": str(given),
            "of_parameters": dict(given.parameters),
            "label": format_labels(clauses_of(labels)),
            "gap": settings.gap,
            "min_iou": settings.min_iou,
        },
    )
    columns = dataclasses.replace(rows, tracks=tracks, source_codes=None, sources=())
    index.add(info, columns, made, examined=frame_ranges(ranges), replace=True)
    return Tracked(made, len(rows), len(np.unique(tracks)), len(steps))


def _tracks(
    rows: DetectionColumns, kinds: Ints, steps: Ints, times: Floats, settings: TrackerSettings
) -> Ints:
    tracks = np.empty(len(rows), np.int64)
    made = 0
    for kind in np.unique(kinds).tolist():
        mine = kinds == kind
        tracks[mine] = made + assign_tracks(
            rows.frames[mine], rows.boxes[mine], steps, times, settings
        )
        made = int(tracks[mine].max()) + 1
    return tracks


def _of_one_source(
    video: VideoContext, labels: Labels | None, source: str | Source | None
) -> tuple[DetectionColumns, Source]:
    """Return the boxes to track, and their source, which may have found none."""
    rows = find_boxes(video, labels, source=source).columns()
    wanted = None if source is None or isinstance(source, str) else source_from(source)
    named = TRACKER if source is None else None  # earlier results are not tracked again
    found = {
        one: code for code, one in enumerate(rows.sources) if one.name != named or wanted == one
    }
    if len(found) > 1:
        names = ", ".join(sorted(map(str, found)))
        raise UsageError(
            f"the boxes must have one source, those of {video.name!r} have {len(found)}: {names}",
            hint="give the source, with its model and version where several have one name",
        )
    if found:
        ((one, code),) = found.items()
        assert rows.source_codes is not None
        return rows.select(rows.source_codes == code).sorted_by_frame(), one
    known = [one.source for one in video.parts.catalog.detections.examined(video.info, source)]
    looked = sorted({one for one in known if one.name != named}, key=str)
    if len(looked) != 1:
        raise NotFoundError(
            f"{video.name!r} has no boxes to track",
            hint="`vfsd labels ls` lists labels and sources; `vfsd detect` finds boxes",
        )
    return rows.select(slice(0, 0)), looked[0]


def _gap(length: Seconds) -> float:
    found = float(seconds(length))
    if found < 0:
        raise UsageError(f"gap must be 0 or more seconds, got {found:g}")
    return found


def _overlap(number: float) -> float:
    try:
        found = float(number)
    except (TypeError, ValueError):
        found = np.nan
    if not 0 < found <= 1:
        raise UsageError(f"min_iou must be above 0 and at most 1, got {number!r}")
    return found

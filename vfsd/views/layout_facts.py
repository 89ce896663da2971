"""What there is to see of a layout of tiles: what was seen on its frames, and where it was read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from vfsd.catalog import Catalog
from vfsd.core.detections import DetectionColumns
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import LogicalVideo, PhysicalVideo, ReadArea, Segment
from vfsd.tiling import Rect

Heat = npt.NDArray[np.int64]
"""height x width: how often each pixel was read."""


@dataclass(frozen=True, eq=False, slots=True)
class LayoutFacts:
    """A segment of tiles (or a stretch of frames without), and one frame of it."""

    video: LogicalVideo
    segment: Segment | None
    frames: range  #: of the segment, or that stretch
    frame: int  #: one of them
    seconds: Fraction  #: at which it appears
    boxes: DetectionColumns  #: what was seen on `frames`, within the displayed frame
    heat: Heat  #: of the displayed frame
    reads: int  #: that have touched `frames`


def layout_facts(
    catalog: Catalog,
    video: LogicalVideo,
    table: FrameTable,
    segment: Segment | None,
    frames: range,
    frame: int | None,
) -> LayoutFacts:
    """What the catalog knows of `frames`, which are those of `segment` where there is one.

    Without `frame`, the one nearest to the middle on which something was seen.  Raises
    `NotFoundError` when the video's bytes have changed.
    """
    media = video.original.media
    width, height = media.display_width, media.display_height
    boxes = catalog.detections(video, frames=frames).columns().clipped(width, height)
    if frame is None:
        frame = _middle(frames, boxes)
    areas = catalog.read_areas(video, frames)
    read = ((area.reads, _rects(catalog, video, frames, area)) for area in areas)
    return LayoutFacts(
        video,
        segment,
        frames,
        frame,
        _start(video.original, table, frame),
        boxes,
        heat_of(read, width, height),
        sum(area.reads for area in areas),
    )


def heat_of(read: Iterable[tuple[int, Sequence[Rect]]], width: int, height: int) -> Heat:
    """How often each pixel was read: (times, areas), where areas that overlap count once."""
    # The value of a pixel is the sum of all steps above it and to its left.
    steps = np.zeros((height + 1, width + 1), np.int64)
    together = np.zeros((height, width), np.int64)
    for times, rects in read:
        if len(rects) == 1:
            (rect,) = rects
            steps[rect.y1, rect.x1] += times
            steps[rect.y2, rect.x2] += times
            steps[rect.y1, rect.x2] -= times
            steps[rect.y2, rect.x1] -= times
        else:
            mask = np.zeros((height, width), bool)
            for rect in rects:
                mask[rect.y1 : rect.y2, rect.x1 : rect.x2] = True
            together[mask] += times
    heat: Heat = steps.cumsum(0).cumsum(1)[:height, :width] + together
    return heat


def _rects(catalog: Catalog, video: LogicalVideo, frames: range, area: ReadArea) -> Sequence[Rect]:
    """What was read of `frames`: of a scan, the boxes that it looked for."""
    media = video.original.media
    if area.kind != "scan" or area.region == media.frame_rect:
        return [area.region]
    labels = None if area.labels is None else [list(clause) for clause in area.labels]
    found = catalog.detections(video, labels, frames=frames, region=area.region).columns()
    rects = (one.rect(media.display_width, media.display_height) for one in found)
    return [rect for rect in rects if rect is not None]


def _middle(frames: range, boxes: DetectionColumns) -> int:
    middle = frames[len(frames) // 2]
    if not len(boxes):
        return middle
    return int(boxes.frames[np.abs(boxes.frames - middle).argmin()])


def _start(original: PhysicalVideo, table: FrameTable, frame: int) -> Fraction:
    """Seconds at which a frame appears; for the frame after the last, the end."""
    if frame >= len(table):
        return original.duration
    return (table.frame_pts(frame) - original.first_pts) * original.time_base

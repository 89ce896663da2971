"""Facts about a tile layout from the catalog: tiles, detections and reads of its frames
(`LayoutFacts`).

`layout_text` describes all layouts of a video in one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt

from vfsd.catalog import Catalog
from vfsd.codecs.cells.tile_codecs import tile_codec
from vfsd.core.detections import DetectionColumns
from vfsd.core.display_geometry import to_display_layout
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import LogicalVideo, PhysicalVideo, ReadArea, Segment
from vfsd.errors import UsageError
from vfsd.tiling import Rect
from vfsd.tiling.layout import uniform_layout

Heat = npt.NDArray[np.int64]
"""height x width: the number of reads of each pixel."""


@dataclass(frozen=True, eq=False, slots=True)
class LayoutFacts:
    """A segment of tiles, or a range of frames without tiles, and one frame of it."""

    video: LogicalVideo
    segment: Segment | None
    frames: range  #: of the segment, or of the range without tiles
    frame: int  #: one of them
    seconds: Fraction  #: when the frame appears
    boxes: DetectionColumns  #: detections on `frames`, clipped to the displayed frame
    heat: Heat  #: of the displayed frame
    reads: int  #: reads that touched `frames`


def layout_facts(
    catalog: Catalog,
    video: LogicalVideo,
    table: FrameTable,
    segment: Segment | None,
    frames: range,
    frame: int | None,
) -> LayoutFacts:
    """Collect what the catalog knows of `frames`, which are those of `segment` if it is given.

    Without `frame`, the facts are about the frame with detections nearest to the middle.  Raises
    `NotFoundError` if the video's bytes have changed.
    """
    media = video.original.media
    width, height = media.display_width, media.display_height
    boxes = catalog.detections(video, frames=frames).columns().clipped(width, height)
    if frame is None:
        frame = _middle(frames, boxes)
    areas = catalog.read_areas(video, frames)
    read = ((area.reads, _read_rects(catalog, video, frames, area)) for area in areas)
    return LayoutFacts(
        video,
        segment,
        frames,
        frame,
        _start(video.original, table, frame),
        boxes,
        read_counts(read, width, height),
        sum(area.reads for area in areas),
    )


def read_counts(read: Iterable[tuple[int, Sequence[Rect]]], width: int, height: int) -> Heat:
    """Count the reads of each pixel from pairs (times, areas); overlapping areas count once."""
    # A pixel's count is the sum of all steps above it and to its left.
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


def _read_rects(
    catalog: Catalog, video: LogicalVideo, frames: range, area: ReadArea
) -> Sequence[Rect]:
    """Return the areas that were read in `frames`: for a scan, the boxes of its labels."""
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
    """Return the time in seconds at which a frame appears, or the duration after the last frame."""
    if frame >= len(table):
        return original.duration
    return (table.frame_pts(frame) - original.first_pts) * original.time_base


_MAX_LAYOUTS = 32
"""Ranges that are listed individually."""
_UNTILED = "untiled"


def layout_text(original: PhysicalVideo, table: FrameTable, segments: Sequence[Segment]) -> str:
    """Return rows x columns of the displayed frame, with seconds, for each range of the same
    layout.

    If only some of the tiles are stored, their number comes first.  `segments` are the ones that
    reads may use; without any, the text is ``untiled``.
    """
    if not segments:
        return _UNTILED
    pieces = list(_layout_spans(original, segments))
    stretches = [list(group) for _, group in groupby(pieces, lambda piece: piece[1])]
    told = [
        f"{stretch[0][1]} {_seconds(original, table, stretch[0][0].start)}"
        f"-{_seconds(original, table, stretch[-1][0].stop)}s"
        for stretch in stretches[:_MAX_LAYOUTS]
    ]
    if len(stretches) > _MAX_LAYOUTS:
        told.append(f"and {len(stretches) - _MAX_LAYOUTS} more")
    return ", ".join(told)


def _layout_spans(
    original: PhysicalVideo, segments: Sequence[Segment]
) -> Iterator[tuple[range, str]]:
    """Yield (frames, layout) without gaps; where segments overlap, the newest wins."""
    edges = {0, original.frames}
    for segment in segments:
        edges |= {segment.first_frame, segment.end_frame}
    for start, end in pairwise(sorted(edges)):
        here = [segment for segment in segments if start in segment.frames]
        newest = max(here, key=lambda one: one.id, default=None)
        yield range(start, end), _UNTILED if newest is None else _layout_name(original, newest)


def _layout_name(original: PhysicalVideo, segment: Segment) -> str:
    shown = to_display_layout(segment.layout, original.media)
    cut = f"{len(shown.heights)}x{len(shown.widths)}"
    if not segment.is_whole:
        cut = f"{len(segment.cells)} of {cut}"
    return f"uniform {cut}" if _is_uniform(original, segment) else cut


def _is_uniform(original: PhysicalVideo, segment: Segment) -> bool:
    layout, media = segment.layout, original.media
    try:
        rules = tile_codec(segment.profile, media).rules
        rows, columns = len(layout.heights), len(layout.widths)
        return layout == uniform_layout(media.width, media.height, rows, columns, rules)
    except UsageError:  # the codec or layout is not supported any more
        return False


def _seconds(original: PhysicalVideo, table: FrameTable, frame: int) -> str:
    if frame >= len(table):
        return f"{float(original.duration):.6g}"
    ticks = table.frame_pts(frame) - original.first_pts
    return f"{float(ticks * original.time_base):.6g}"

"""Scans: the pixels of what was seen in a video, in the order of its frames.

The predicate on labels is answered by the index, so only the tiles are decoded that hold a box
that is wanted, up to the last frame that has one (TASM calls it semantic predicate pushdown).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from vfsd.core.detections import Detection, DetectionColumns
from vfsd.core.display_geometry import to_display_rect
from vfsd.core.frame_table import FrameTable
from vfsd.core.frames import Batch, Crop, CropRequest, crop_batches, padded_rect
from vfsd.core.model import PhysicalVideo
from vfsd.read.crop_reader import CropReader
from vfsd.tiling import Rect
from vfsd.validation import how_many


@dataclass(frozen=True, slots=True)
class Seen:
    """A run of frames on each of which something wanted was seen."""

    frames: range
    seconds: tuple[float, float]  #: from the first frame's appearance to the last one's end
    labels: tuple[str, ...]
    boxes: int


class Scan:
    """What was seen, and how to have its pixels.  Made by `Video.scan`; may be used repeatedly.

    Everything comes in the order of frames, and within a frame in the order in which the boxes
    came into the index.  Results are made ahead of who takes them, by all cores, for a few
    seconds of video at most.
    """

    def __init__(
        self,
        physical: PhysicalVideo,
        table: FrameTable,
        reader: CropReader,
        columns: DetectionColumns,
        *,
        padding: int,
    ) -> None:
        self._physical = physical
        self._table = table
        self._reader = reader
        self._padding = padding
        media = physical.media
        self._columns = columns.clipped(media.display_width, media.display_height).in_order()

    def __repr__(self) -> str:
        frames = len(set(self._columns.frames.tolist()))
        return f"<Scan: {len(self)} boxes on {frames} frames>"

    def __len__(self) -> int:
        """Number of boxes."""
        return len(self._columns)

    # -- forms

    def crops(
        self, *, size: tuple[int, int] | None = None, format: str = "rgb24"
    ) -> Iterator[Crop]:
        """The pixels of each box, scaled to `size` (width, height) if that is given."""
        return self._reader.read(self._boxes(), size, format)

    def batches(
        self, count: int, size: tuple[int, int], *, format: str = "rgb24"
    ) -> Iterator[Batch]:
        """Crops scaled to one size, `count` at a time; the last batch may have fewer.

        Raises `UsageError`.
        """
        return crop_batches(self.crops(size=size, format=format), count)

    def frames(
        self, *, size: tuple[int, int] | None = None, format: str = "rgb24"
    ) -> Iterator[Crop]:
        """Whole frames on which something was seen, once each."""
        return self._reader.of_frames().read(self._whole_frames(), size, format)

    def tiles(
        self, *, size: tuple[int, int] | None = None, format: str = "rgb24"
    ) -> Iterator[Crop]:
        """The tiles of each frame's layout that hold what was seen; of untiled frames all of it."""
        return self._reader.read(self._touched_tiles(), size, format)

    def spans(self, *, gap: int = 0) -> list[Seen]:
        """Runs of frames on which something was seen, up to `gap` frames without it included.

        Raises `UsageError`.
        """
        gap = how_many(gap, "gap")
        runs: list[tuple[int, int]] = []  # rows, half-open
        frames = self._columns.frames
        start = 0
        for row in range(1, len(frames) + 1):
            if row == len(frames) or frames[row] - frames[row - 1] > gap + 1:
                runs.append((start, row))
                start = row
        return [self._seen(low, high) for low, high in runs]

    # -- what is wanted

    def _boxes(self) -> Iterator[CropRequest]:
        for detection in self._columns:
            yield CropRequest(detection.frame, self._rect(detection), (detection,))

    def _whole_frames(self) -> Iterator[CropRequest]:
        full = self._physical.media.frame_rect
        for frame, seen in self._by_frame():
            yield CropRequest(frame, full, seen)

    def _touched_tiles(self) -> Iterator[CropRequest]:
        media = self._physical.media
        for frame, seen in self._by_frame():
            segment = self._reader.segment_of(frame)
            if segment is None:
                yield CropRequest(frame, media.frame_rect, seen)
                continue
            for tile in segment.layout.tiles:
                shown = to_display_rect(tile, media)
                inside = tuple(one for one in seen if self._rect(one).intersection(shown))
                if inside:
                    yield CropRequest(frame, shown, inside)

    def _by_frame(self) -> Iterator[tuple[int, tuple[Detection, ...]]]:
        for frame, together in groupby(self._columns, lambda detection: detection.frame):
            yield frame, tuple(together)

    def _rect(self, detection: Detection) -> Rect:
        return padded_rect(detection, self._physical.media, self._padding)

    def _seen(self, low: int, high: int) -> Seen:
        rows = self._columns.select(slice(low, high))
        frames = range(int(rows.frames[0]), int(rows.frames[-1]) + 1)
        last = self._table.frame(frames[-1])
        start = self._table.frame_pts(frames.start)
        return Seen(
            frames,
            (self._reader.seconds(start), self._reader.seconds(last.pts + last.duration)),
            tuple(sorted({str(label) for label in rows.labels})),
            len(rows),
        )

"""Full scans that leave out what cannot matter: every frame, but only where something may be.

A detector that has to look at all of a video needs little of most frames.  Where its regions of
interest are known, from a cheap look at some frames or from somebody who knows the camera, only
the tiles that hold them are decoded (TASM's second use: "full scan").
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from vfsd.core.detections import Detection, DetectionColumns
from vfsd.core.display_geometry import to_display_rect
from vfsd.core.frames import Batch, Crop, CropRequest, crop_batches, padded_rect
from vfsd.core.model import MediaInfo, PhysicalVideo
from vfsd.disk.block_checksums import merged
from vfsd.read.crop_reader import CropReader
from vfsd.tiling import Rect


@dataclass(frozen=True, slots=True)
class Interest:
    """A run of frames, and where they may show something: the same places on each of them."""

    frames: range  #: may have a step
    regions: tuple[Rect, ...]  #: of the displayed frame; none: nothing is there
    seen: DetectionColumns  #: what the regions were made from, by frame


class RegionScan:
    """Every frame's regions of interest.  Made by `Video.scan(roi=...)`; may be used repeatedly.

    Everything comes in the order of frames.  Frames of a run in which nothing is of interest are
    left out.  Results are made ahead of who takes them, by all cores, for a few seconds of video.
    """

    def __init__(
        self, physical: PhysicalVideo, reader: CropReader, interests: Sequence[Interest]
    ) -> None:
        self._media = physical.media
        self._reader = reader
        self.interests = tuple(interests)  #: by time; together all frames that were asked for

    def __repr__(self) -> str:
        return f"<RegionScan: regions of interest on {len(self)} frames>"

    def __len__(self) -> int:
        """Number of frames that are looked at."""
        return sum(len(one.frames) for one in self.interests if one.regions)

    def tiles(
        self, *, size: tuple[int, int] | None = None, format: str = "rgb24"
    ) -> Iterator[Crop]:
        """The tiles of each frame's layout that hold a region; of untiled frames all of it."""
        return self._reader.read(self._tiles(), size, format)

    def areas(
        self, *, size: tuple[int, int] | None = None, format: str = "rgb24"
    ) -> Iterator[Crop]:
        """One picture of each frame: the area around all its regions."""
        return self._reader.read(self._areas(), size, format)

    def batches(
        self, count: int, size: tuple[int, int], *, format: str = "rgb24"
    ) -> Iterator[Batch]:
        """Tiles scaled to one size (width, height), `count` at a time; the last may have fewer.

        Raises `UsageError`.
        """
        return crop_batches(self.tiles(size=size, format=format), count)

    # -- what is wanted

    def _tiles(self) -> Iterator[CropRequest]:
        for one in self.interests:
            if one.regions:
                for frame, seen in _by_frame(one):
                    for rect in self._held(frame, one.regions):
                        yield CropRequest(frame, rect, self._inside(rect, seen))

    def _areas(self) -> Iterator[CropRequest]:
        for one in self.interests:
            if one.regions:
                area = Rect.around(one.regions)
                for frame, seen in _by_frame(one):
                    yield CropRequest(frame, area, seen)

    def _held(self, frame: int, regions: Sequence[Rect]) -> list[Rect]:
        """The tiles of that frame that hold a part of a region."""
        segment = self._reader.segment_of(frame)
        if segment is None:
            return [self._media.frame_rect]
        shown = [to_display_rect(tile, self._media) for tile in segment.layout.tiles]
        return [rect for rect in shown if any(rect.intersection(region) for region in regions)]

    def _inside(self, rect: Rect, seen: Sequence[Detection]) -> tuple[Detection, ...]:
        return tuple(one for one in seen if padded_rect(one, self._media, 0).intersection(rect))


def interests_around(
    columns: DetectionColumns,
    media: MediaInfo,
    sequences: Sequence[range],
    examined: Sequence[range],
    *,
    padding: int,
) -> list[Interest]:
    """Where something was seen, in each of `sequences`, which are by time.

    One of which no frame was `examined` may show anything anywhere: all of it is of interest.
    """
    rows = columns.clipped(media.display_width, media.display_height).in_order()
    looked = merged(examined)
    found = []
    for frames in sequences:
        low, high = np.searchsorted(rows.frames, [frames.start, frames.stop])
        seen = rows.select(slice(int(low), int(high)))
        regions = tuple(dict.fromkeys(padded_rect(one, media, padding) for one in seen))
        place = bisect_right(looked, frames.start, key=lambda run: run.stop)
        known = place < len(looked) and looked[place].start < frames.stop
        found.append(Interest(frames, regions if regions or known else (media.frame_rect,), seen))
    return found


def _by_frame(interest: Interest) -> Iterator[tuple[int, tuple[Detection, ...]]]:
    """Every frame, with what was seen on it."""
    seen = {
        frame: tuple(together)
        for frame, together in groupby(interest.seen, lambda detection: detection.frame)
    }
    for frame in interest.frames:
        yield frame, seen.get(frame, ())

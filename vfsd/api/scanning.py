"""What was seen in a video, with its pixels: the part of `vfsd.Video` that scans."""

from __future__ import annotations

import dataclasses
from reprlib import repr as shown
from typing import TypedDict, overload

from vfsd.api.frames import Region, VideoFrames, view_of
from vfsd.api.labels import VideoLabels
from vfsd.api.region_scan import Interest, RegionScan, interests_around
from vfsd.api.scan import Scan
from vfsd.core.detections import DetectionColumns, Source
from vfsd.core.label_query import Labels, clauses_of
from vfsd.core.timebase import Seconds
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.read.crop_reader import CropReader
from vfsd.read.read_log import ScanPurpose
from vfsd.tiling import Rect
from vfsd.validation import pixels_around


class ScanOptions(TypedDict, total=False):
    """The arguments of `VideoScans.scan` besides its labels."""

    span: tuple[Seconds, Seconds | None] | None
    frames: range | None
    region: Region | None
    source: str | Source | None
    min_confidence: float | None
    track: int | None
    padding: int
    psnr: float | None
    seen_in: VideoScans | None


class VideoScans(VideoLabels, VideoFrames):
    """Scans of one video."""

    @overload
    def scan(
        self,
        labels: Labels | None = None,
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | None = None,
        region: Region | None = None,
        source: str | Source | None = None,
        min_confidence: float | None = None,
        track: int | None = None,
        padding: int = 0,
        psnr: float | None = None,
        seen_in: VideoScans | None = None,
    ) -> Scan: ...

    @overload
    def scan(
        self,
        *,
        roi: str | Region,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | None = None,
        source: str | Source | None = None,
        padding: int = 0,
        psnr: float | None = None,
        seen_in: VideoScans | None = None,
    ) -> RegionScan: ...

    def scan(
        self,
        labels: Labels | None = None,
        *,
        roi: str | Region | None = None,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | None = None,
        region: Region | None = None,
        source: str | Source | None = None,
        min_confidence: float | None = None,
        track: int | None = None,
        padding: int = 0,
        psnr: float | None = None,
        seen_in: VideoScans | None = None,
    ) -> Scan | RegionScan:
        """The pixels of what was seen: crops, tiles, frames or spans, in the order of frames.

        What is wanted is said as for `detections`; `padding` pixels are added around each box.
        `seen_in` is another variant of the same video (with the same frames, and of the same
        size) whose boxes are meant.  `psnr` is as for `read`.

        With `roi`, every frame is looked at, but only at its regions of interest: a region of all
        frames, or a label like "motion": wherever that was seen within the same second or so, and
        all of it in seconds of which no source of that label (or not `source`) has examined a
        frame.  Raises `UsageError`, `OutOfRangeError`.
        """
        other = self if seen_in is None else seen_in
        if not isinstance(other, VideoScans):
            raise UsageError(
                f"seen_in must be a video of the store, got {shown(other)}",
                hint="give a video of the store",
            )
        padding = pixels_around(padding)
        if span is not None:
            if frames is not None:
                raise UsageError("give either a span of time or frames, not both")
            frames = self.frames_in(span)
        if (len(other), other.width, other.height) != (len(self), self.width, self.height):
            raise UsageError(f"{other.name!r} has other frames than {self.name!r}")
        if roi is not None:
            if any(given is not None for given in (labels, region, min_confidence, track)):
                raise UsageError("a scan of regions of interest is of all that is in them")
            place = roi if isinstance(roi, str) else self._place(roi)
            chosen = self._chosen(frames)
            interests = self._interests(other, place, chosen, source, padding)
            return RegionScan(self.original, self._crop_reader(psnr, place), interests)
        found = other.detections(
            labels,
            frames=frames,
            region=region,
            source=source,
            min_confidence=min_confidence,
            track=track,
        )
        reader = self._crop_reader(psnr, labels)
        return Scan(self.original, self.table, reader, found.columns(), padding=padding)

    def _crop_reader(self, psnr: float | None, wanted: Labels | Rect | None) -> CropReader:
        purpose = ScanPurpose()
        if isinstance(wanted, Rect):
            purpose = ScanPurpose(region=wanted)
        elif wanted is not None:
            purpose = ScanPurpose(tuple(tuple(sorted(clause)) for clause in clauses_of(wanted)))
        return CropReader(self.info, self.table, self._tools, self._tiles(self.info, psnr), purpose)

    def _place(self, roi: Region) -> Rect:
        rect = view_of(self._counted(), region=roi).region
        if rect is None or not self.original.media.frame_rect.contains(rect):
            raise OutOfRangeError(f"the region {roi} reaches outside the frame")
        return rect

    def _interests(
        self,
        other: VideoScans,
        roi: str | Rect,
        frames: range,
        source: str | Source | None,
        padding: int,
    ) -> list[Interest]:
        sequences = [run for run in self.sequences() if _among(run, frames)]
        if not isinstance(roi, str):
            nothing = DetectionColumns.of([], [], [])
            found = [Interest(run, (roi,), nothing) for run in sequences]
        else:
            # A label that no source has used yet only means that nothing was examined for it.
            seen = self._parts.catalog.detections(other.info, roi, source=source).columns()
            examined = other.examined_for(roi) if source is None else other.examined(source)
            looked = [one.frames for one in examined]
            media = self.original.media
            found = interests_around(seen, media, sequences, looked, padding=padding)
        return [dataclasses.replace(one, frames=_among(one.frames, frames)) for one in found]

    def _chosen(self, frames: range | None) -> range:
        if frames is None:
            return range(len(self))
        if not isinstance(frames, range) or frames.step < 1:
            raise UsageError(
                f"frames must be an ascending range, got {shown(frames)}",
                hint="boxes of single frames are found by `scan` without `roi`",
            )
        return frames


def _among(run: range, frames: range) -> range:
    """Those of `frames`, which may have a step, that are in a run."""
    steps = max(0, -(-(run.start - frames.start) // frames.step))
    return range(frames.start + steps * frames.step, min(run.stop, frames.stop), frames.step)

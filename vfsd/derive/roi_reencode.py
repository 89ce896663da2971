"""Re-encodes a video so that only regions around some labels keep their quality.

Outside them, one low-passed picture is repeated for each run of about two seconds, which takes
almost no bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from vfsd.catalog import Catalog
from vfsd.codecs import VideoFrame
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.encoding.archive_encoder import (
    ErrorMeasure,
    ReencodedRun,
    blended,
    frame_error,
    frame_pairs,
    low_passed,
    masked_error,
)
from vfsd.core.display_geometry import to_coded_rect
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.label_query import parse_labels
from vfsd.core.model import LogicalVideo, MediaInfo
from vfsd.core.psnr import psnr_from_error
from vfsd.derive.reencode import Comparison, VideoReencoder
from vfsd.errors import ForbiddenError, UsageError
from vfsd.storage.context import StoreContext
from vfsd.tiling import Rect

PADDING = 16
"""Pixels around each box."""
AROUND_SECONDS = Fraction(1, 2)
"""A box also counts this long before and after its frame.  Gaps between examined frames must not be
longer."""
_MAX_AREAS = 4096
"""Size of the cache of grown boxes; more than count for a frame."""
# Areas of another quality would need an encoder that supports them.  Repeating the last picture
# elsewhere costs the same and works in any codec.
_ALIGN = 16
"""Areas are aligned to it, the block size of encoders, so that chroma samples are whole."""

Mask = npt.NDArray[np.uint8]


class RoiAreas:
    """Boxes of some labels, extended in space and time, in pixels of the stored picture.

    `shown` has the display time of each frame in ticks of `media`, and the end of the last one.
    """

    def __init__(
        self, media: MediaInfo, frames: npt.NDArray[Any], boxes: npt.NDArray[Any], shown: Ints
    ) -> None:
        order = np.argsort(frames, kind="stable")
        self._media = media
        self._frames, self._boxes = np.asarray(frames)[order], np.asarray(boxes)[order]
        self._shown = shown
        self._around = _around(media)
        # A box is used for all frames of a second.
        self._area = lru_cache(_MAX_AREAS)(self._grown)

    def __len__(self) -> int:
        """Number of boxes."""
        return len(self._frames)

    def mask(self, frame: int) -> Mask | None:
        """Return a mask of rows x columns of the stored picture: 255 where quality is kept; None
        without any.
        """
        appear, go = self._shown[:-1], self._shown[1:]
        first = np.searchsorted(go, appear[frame] - self._around)
        last = np.searchsorted(appear, go[frame] + self._around, side="right")
        low, high = np.searchsorted(self._frames, (first, last))
        if low == high:
            return None
        mask = np.zeros((self._media.height, self._media.width), np.uint8)
        for box in np.unique(self._boxes[low:high], axis=0).tolist():
            area = self._area(*box)
            if area is not None:
                mask[area.y1 : area.y2, area.x1 : area.x2] = 255
        return mask if mask.any() else None

    def are_of(self, catalog: Catalog, video: LogicalVideo, labels: str) -> bool:
        """Return whether the catalog still has exactly the same boxes."""
        found = RoiAreas(self._media, *_boxes(catalog, video, labels), self._shown)
        return np.array_equal(found._frames, self._frames) and np.array_equal(
            found._boxes, self._boxes
        )

    def _grown(self, left: float, top: float, right: float, bottom: float) -> Rect | None:
        media = self._media
        x1, y1 = (max(0, math.floor(at) - PADDING) for at in (left, top))
        x2 = min(media.display_width, math.ceil(right) + PADDING)
        y2 = min(media.display_height, math.ceil(bottom) + PADDING)
        if x1 >= x2 or y1 >= y2:
            return None
        area = to_coded_rect(Rect(x1, y1, x2, y2), media)
        return Rect(
            area.x1 // _ALIGN * _ALIGN,
            area.y1 // _ALIGN * _ALIGN,
            min(media.width, -(-area.x2 // _ALIGN) * _ALIGN),
            min(media.height, -(-area.y2 // _ALIGN) * _ALIGN),
        )


def find_roi_areas(
    catalog: Catalog, video: LogicalVideo, table: FrameTable, labels: str
) -> RoiAreas:
    """Return the areas of the boxes that match the expression `labels`.

    Raises `ForbiddenError` if frames were not examined by a source that can find these labels.
    """
    media = video.original.media
    shown = np.maximum.accumulate(np.append(table.pts(), table.end_pts))
    with catalog.reading() as seen:
        examined = seen.detections.examined(video.id)
        for clause in parse_labels(labels):
            givers = {
                who
                for who in {one.source for one in examined}
                if seen.detections.detects_any(who, clause)
            }
            looked = [one.frames for one in examined if one.source in givers]
            _require_examined(video, clause, looked, shown)
    return RoiAreas(media, *_boxes(catalog, video, labels), shown)


def _boxes(
    catalog: Catalog, video: LogicalVideo, labels: str
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    found = catalog.detections(video, parse_labels(labels)).columns()
    return found.frames, found.boxes


def _around(media: MediaInfo) -> int:
    """Return `AROUND_SECONDS` in ticks."""
    return math.floor(AROUND_SECONDS / media.time_base)


def _require_examined(
    video: LogicalVideo, labels: Sequence[str], examined: Sequence[range], shown: Ints
) -> None:
    """Raises `ForbiddenError` for a gap between examined frames that is too long."""
    around = _around(video.original.media)
    at = 0
    for frames in sorted(examined, key=lambda one: one.start):
        if shown[frames.start] - shown[at] > around:
            break
        at = max(at, frames.stop)
    if shown[-1] - shown[at] > around:
        raise ForbiddenError(
            f"{video.name} was not examined for {' or '.join(labels)} from frame {at} on",
            hint="run `vfsd detect` with a detector of these labels first",
        )


_BLUR_RADIUS = 4
"""Radius in pixels of the averaging of the background."""
_PLANAR = ("yuv420p", "yuv422p", "yuv444p", "yuvj420p", "yuvj422p", "yuvj444p", "gray")


class RoiReencoder(VideoReencoder):
    """Encodes one video with at most the error `limit` within `areas`.

    Raises `UsageError` also for pixel formats that cannot be composed.
    """

    def __init__(
        self,
        parts: StoreContext,
        video: LogicalVideo,
        table: FrameTable,
        codec: str,
        limit: float,
        areas: RoiAreas,
    ) -> None:
        super().__init__(parts, video, table, codec, limit)
        pixels = video.original.media.pixel_format
        if pixels.removesuffix("10le") not in _PLANAR:
            raise UsageError(f"pictures in {pixels} cannot decay")
        self._areas = areas
        self._before: VideoFrame | None = None  # of the previous run
        self._behind: VideoFrame | None = None  # background of the current run

    def encoded(self, decoder: FrameDecoder, frames: range) -> ReencodedRun:
        run = super().encoded(decoder, frames)
        self._before = self._behind
        return run

    def compare(
        self, source: FrameDecoder, made: FrameDecoder, on_frame: Callable[[], None]
    ) -> Comparison:
        """Apply the limit to the kept areas of each picture; the rest is only measured."""
        whole = inside = outside = 0.0
        count = 0
        for number, one, other in frame_pairs(source, made, range(len(self._table))):
            if number == 0:
                self._require_same_siting(other)
            mask = self._areas.mask(number)
            error = frame_error(one, other)
            whole, inside = max(whole, error), max(inside, masked_error(one, other, mask))
            rest = error if mask is None else masked_error(one, other, 255 - mask)
            outside, count = outside + rest * rest, count + 1
            on_frame()
        details = {
            "boxes": len(self._areas),
            "inside": psnr_from_error(inside) if inside else None,
            "outside": psnr_from_error(math.sqrt(outside / count)) if outside else None,
        }
        return Comparison(whole, inside, details)

    def _pictures(self, decoder: FrameDecoder, frames: range) -> Iterator[VideoFrame]:
        background: VideoFrame | None = None
        for number, picture in self._decoded(decoder, frames):
            mask = self._areas.mask(number)
            if background is None:
                background = low_passed(picture, _BLUR_RADIUS)
                if mask is not None and self._before is not None:
                    # Objects in the kept area move on and must not stay visible in the background.
                    background = blended(background, self._before, mask)
                self._behind = background
            yield blended(background, picture, mask)

    def _measure_from(self, frames: range) -> ErrorMeasure:
        return lambda ordinal, one, other: masked_error(
            one, other, self._areas.mask(frames.start + ordinal)
        )

"""Which areas of a video's pictures keep their quality when the rest decays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vfsd.catalog import Catalog
from vfsd.errors import ForbiddenError
from vfsd.labelexpr import parse_labels
from vfsd.model import LogicalVideo, MediaInfo
from vfsd.orientation import in_picture
from vfsd.tiling import Rect

PADDING = 16
"""Pixels around each box."""
AROUND_SECONDS = 0.5
"""Before and after the frame of a box for which it counts, too; no gap between frames that were
looked at may be longer."""
_ALIGN = 16
"""Areas are grown to multiples of it: blocks of an encoder, and whole samples of chroma."""

Mask = npt.NDArray[np.uint8]


class KeptAreas:
    """Boxes of some labels, grown in space and time, in pixels of the stored picture."""

    def __init__(
        self, media: MediaInfo, frames: npt.NDArray[Any], boxes: npt.NDArray[Any], around: int
    ) -> None:
        order = np.argsort(frames, kind="stable")
        self._media = media
        self._frames, self._boxes = np.asarray(frames)[order], np.asarray(boxes)[order]
        self._around = around

    def __len__(self) -> int:
        """How many boxes there are."""
        return len(self._frames)

    def mask(self, frame: int) -> Mask | None:
        """Rows x columns of the stored picture: 255 where the quality is kept; None: nowhere."""
        low = np.searchsorted(self._frames, frame - self._around)
        high = np.searchsorted(self._frames, frame + self._around, side="right")
        if low == high:
            return None
        mask = np.zeros((self._media.height, self._media.width), np.uint8)
        for box in np.unique(self._boxes[low:high], axis=0):
            area = self._grown(box)
            if area is not None:
                mask[area.y1 : area.y2, area.x1 : area.x2] = 255
        return mask if mask.any() else None

    def _grown(self, box: npt.NDArray[Any]) -> Rect | None:
        media = self._media
        x1, y1 = (max(0, int(np.floor(at)) - PADDING) for at in box[:2])
        x2 = min(media.display_width, int(np.ceil(box[2])) + PADDING)
        y2 = min(media.display_height, int(np.ceil(box[3])) + PADDING)
        if x1 >= x2 or y1 >= y2:
            return None
        area = in_picture(Rect(x1, y1, x2, y2), media)
        return Rect(
            area.x1 // _ALIGN * _ALIGN,
            area.y1 // _ALIGN * _ALIGN,
            min(media.width, -(-area.x2 // _ALIGN) * _ALIGN),
            min(media.height, -(-area.y2 // _ALIGN) * _ALIGN),
        )


def kept_areas(catalog: Catalog, video: LogicalVideo, labels: str) -> KeptAreas:
    """Of the boxes that an expression finds.

    Raises `ForbiddenError` where frames have not been looked at by anybody, so that nobody knows
    what is on them.
    """
    original = video.original
    rate = original.frames / float(original.duration) if original.duration else 25.0
    around = max(1, round(AROUND_SECONDS * rate))
    _require_examined(video, [one.frames for one in catalog.examined(video)], around)
    found = catalog.detections(video, parse_labels(labels)).columns()
    return KeptAreas(original.media, found.frames, found.boxes, around)


def _require_examined(video: LogicalVideo, examined: Sequence[range], around: int) -> None:
    """Raises `ForbiddenError` for a gap of more than `around` frames."""
    at = 0
    for frames in sorted(examined, key=lambda one: one.start):
        if frames.start - at > around:
            break
        at = max(at, frames.stop)
    if video.original.frames - at > around:
        raise ForbiddenError(
            f"nobody has looked for objects in {video.name} from frame {at} on",
            hint="`vfsd detect` looks; what is examined may decay",
        )

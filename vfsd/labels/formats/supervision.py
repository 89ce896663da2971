"""`supervision.Detections`, or what has its `xyxy`, `class_id`, `confidence` and `tracker_id`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vfsd.core.detections import NO_TRACK, DetectionColumns
from vfsd.errors import UsageError


def from_supervision(
    detections: Any, frame: int, names: Sequence[str] | Mapping[int, str] | None = None
) -> DetectionColumns:
    """What was found on one frame; join several with `DetectionColumns.concat`.

    Labels are `data["class_name"]` where it is there, else `names` by `class_id`.  The package
    itself is not needed.  Raises `UsageError` where there is no name for a class.
    """
    boxes = np.asarray(detections.xyxy, dtype=np.float64).reshape(-1, 4)
    count = len(boxes)
    said = (getattr(detections, "data", None) or {}).get("class_name")
    tracks = getattr(detections, "tracker_id", None)
    return DetectionColumns.of(
        np.full(count, frame, dtype=np.int64),
        [str(name) for name in said] if said is not None else _labels(detections, count, names),
        boxes,
        getattr(detections, "confidence", None),
        None if tracks is None else [NO_TRACK if track is None else int(track) for track in tracks],
    )


def _labels(
    detections: Any, count: int, names: Sequence[str] | Mapping[int, str] | None
) -> list[str]:
    numbers = getattr(detections, "class_id", None)
    if not count:
        return []
    if numbers is None or names is None:
        raise UsageError(
            "the detections do not tell the names of their classes",
            hint='give names=[...], or detections with data["class_name"]',
        )
    try:
        return [names[int(number)] for number in numbers]
    except LookupError as error:
        raise UsageError(f"class {error} has no name") from None

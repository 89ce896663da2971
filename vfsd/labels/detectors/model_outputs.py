"""Decodes the outputs of YOLO, SSD and TensorFlow models to boxes, and removes duplicates by non-
maximum suppression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.core.detections import Box
from vfsd.errors import UsageError


@dataclass(frozen=True, slots=True)
class ScoredBox:
    """One box that a detector proposes."""

    box: Box
    kind: int  #: number of its class
    confidence: float


def non_maximum_suppression(
    proposed: Sequence[ScoredBox], overlap: float, width: int, height: int
) -> list[ScoredBox]:
    """The parts of the boxes within width x height, without those that a more confident box of the
    same class covers by more than `overlap` (intersection over union); by falling confidence.

    Boxes that are no boxes (not finite, or without area in the frame) are left out.
    """
    kept = []
    for one in proposed:
        if not np.isfinite((*one.box, one.confidence)).all():
            continue
        x1, y1, x2, y2 = one.box
        box = (max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height)))
        if box[0] < box[2] and box[1] < box[3]:
            kept.append(ScoredBox(box, one.kind, one.confidence))
    # Ties are broken by place, so that the order in which they were proposed does not matter.
    kept.sort(key=lambda one: (-one.confidence, one.kind, one.box))
    if not kept:
        return []
    chosen = cv2.dnn.NMSBoxesBatched(
        [(x1, y1, x2 - x1, y2 - y1) for x1, y1, x2, y2 in (one.box for one in kept)],
        [one.confidence for one in kept],
        [one.kind for one in kept],
        0.0,
        overlap,
    )
    return [kept[at] for at in sorted(np.ravel(chosen).astype(int).tolist())]


Floats = npt.NDArray[np.float64]
Outputs = Mapping[str, npt.NDArray[Any]]

Head = Literal["auto", "yolov5", "yolov8", "rows", "ssd", "tensorflow"]
HEADS: tuple[Head, ...] = ("auto", "yolov5", "yolov8", "rows", "ssd", "tensorflow")

_MOST_ROWS = 1000
"""Models that suppress overlaps themselves answer at most so many boxes; the ones that do not
have thousands of places."""


@dataclass(frozen=True, slots=True)
class ModelBoxes:
    """Boxes, in no order."""

    boxes: Floats  #: N x 4: x1, y1, x2, y2 in pixels of the picture
    kinds: npt.NDArray[np.int64]  #: numbers of classes, as the model counts them
    confidences: Floats


def decode_outputs(
    outputs: Outputs, head: Head, picture: tuple[int, int], least: float
) -> ModelBoxes:
    """The boxes with a confidence of at least `least` in what a model has answered.

    `picture` is its input, width x height.  The heads:

    - yolov8: 1 x (4 + classes) x N, each column a centre, a size, and a score for each class;
    - yolov5: 1 x N x (5 + classes), each row a centre, a size, a score for there being anything,
      and one for each class;
    - rows: 1 x N x 6, each row two corners, a score, and a class;
    - ssd: three outputs: N x 4 corners in pixels, N scores, N classes (torchvision);
    - tensorflow: the same as `detection_boxes` (y1, x1, y2, x2 in parts of the picture),
      `detection_scores` and `detection_classes`.

    "auto" goes by number, names and shapes.  Raises `UsageError` where they fit none.
    """
    plain = {name: np.asarray(value) for name, value in outputs.items()}
    if head == "auto":
        head = _recognised(plain)
    try:
        with np.errstate(all="ignore"):
            answer = _READERS[head](plain, picture)
    except (KeyError, IndexError, ValueError, TypeError, StopIteration):
        raise _unreadable(plain, head) from None
    count = len(answer.confidences)
    if answer.boxes.shape != (count, 4) or answer.kinds.shape != (count,):
        raise _unreadable(plain, head)
    sure = answer.confidences >= least  # what is no number is not
    return ModelBoxes(answer.boxes[sure], answer.kinds[sure], answer.confidences[sure])


def _recognised(outputs: Outputs) -> Head:
    if "detection_boxes" in outputs:
        return "tensorflow"
    if len(outputs) == 3:
        return "ssd"
    shape = next(iter(outputs.values())).shape if outputs else ()
    if len(shape) != 3:
        raise _unreadable(outputs, "auto")
    if shape[2] == 6 and shape[1] <= _MOST_ROWS:
        return "rows"
    # There are more places than numbers for each.
    return "yolov8" if shape[1] < shape[2] else "yolov5"


def _yolov8(outputs: Outputs, picture: tuple[int, int]) -> ModelBoxes:
    return _boxes_from_centers(_single_output(outputs).T[:, :4], _single_output(outputs).T[:, 4:])


def _yolov5(outputs: Outputs, picture: tuple[int, int]) -> ModelBoxes:
    rows = _single_output(outputs)
    return _boxes_from_centers(rows[:, :4], rows[:, 5:] * rows[:, 4:5])


def _rows(outputs: Outputs, picture: tuple[int, int]) -> ModelBoxes:
    rows = _single_output(outputs)
    return ModelBoxes(rows[:, :4], _numbers(rows[:, 5]), rows[:, 4])


def _ssd(outputs: Outputs, picture: tuple[int, int]) -> ModelBoxes:
    kept = {name: value.reshape(-1, 4) for name, value in outputs.items() if _is_boxes(value)}
    (boxes,) = kept.values()
    rest = {name: value.reshape(-1) for name, value in outputs.items() if name not in kept}
    # Classes are whole numbers, by type or, failing that, by name.
    kinds = next(
        name for name, value in rest.items() if value.dtype.kind in "iu" or _is_classes(name)
    )
    (scores,) = (value for name, value in rest.items() if name != kinds)
    return ModelBoxes(boxes.astype(np.float64), _numbers(rest[kinds]), scores.astype(np.float64))


def _tensorflow(outputs: Outputs, picture: tuple[int, int]) -> ModelBoxes:
    y1, x1, y2, x2 = outputs["detection_boxes"].reshape(-1, 4).astype(np.float64).T
    across, down = picture
    return ModelBoxes(
        np.stack([x1 * across, y1 * down, x2 * across, y2 * down], axis=1),
        _numbers(outputs["detection_classes"].reshape(-1)),
        outputs["detection_scores"].reshape(-1).astype(np.float64),
    )


_READERS = {
    "yolov8": _yolov8,
    "yolov5": _yolov5,
    "rows": _rows,
    "ssd": _ssd,
    "tensorflow": _tensorflow,
}


def _boxes_from_centers(places: Floats, scores: Floats) -> ModelBoxes:
    """From centres and sizes, and a score for each class."""
    kinds = scores.argmax(axis=1)
    half = places[:, 2:] / 2
    corners = np.hstack([places[:, :2] - half, places[:, :2] + half])
    return ModelBoxes(corners, kinds.astype(np.int64), scores[np.arange(len(scores)), kinds])


def _single_output(outputs: Outputs) -> Floats:
    """Of the only picture that was shown; where there are several outputs, the first."""
    (first,) = next(iter(outputs.values())).astype(np.float64)
    found: Floats = first
    if found.ndim != 2 or found.shape[1] < 5 or found.shape[0] < 1:
        raise ValueError(found.shape)
    return found


def _is_boxes(value: npt.NDArray[Any]) -> bool:
    return value.ndim >= 2 and value.shape[-1] == 4


def _is_classes(name: str) -> bool:
    return "label" in name.lower() or "class" in name.lower()


def _numbers(kinds: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    whole = np.nan_to_num(kinds.astype(np.float64), nan=-1, posinf=-1, neginf=-1)
    return np.clip(whole, -1, 2**31).round().astype(np.int64)


def _unreadable(outputs: Outputs, head: Head) -> UsageError:
    shapes = ", ".join(f"{name} {'x'.join(map(str, v.shape))}" for name, v in outputs.items())
    return UsageError(
        f"what the model answers ({shapes or 'nothing'}) cannot be read as {head}",
        hint=f"the heads that are known: {', '.join(HEADS[1:])}",
    )

"""Decodes the outputs of YOLO, SSD and TensorFlow models to boxes.

`non_maximum_suppression` removes duplicates.
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
    """A box proposed by a detector."""

    box: Box
    kind: int  #: class number
    confidence: float


def non_maximum_suppression(
    proposed: Sequence[ScoredBox], overlap: float, width: int, height: int
) -> list[ScoredBox]:
    """Clip the boxes to width x height, and remove duplicates; by falling confidence.

    A box is a duplicate if a more confident one of the same class overlaps it by more than
    `overlap` (intersection over union).  Boxes that are not finite or have no area in the frame are
    dropped.
    """
    kept = []
    for one in proposed:
        if not np.isfinite((*one.box, one.confidence)).all():
            continue
        x1, y1, x2, y2 = one.box
        box = (max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height)))
        if box[0] < box[2] and box[1] < box[3]:
            kept.append(ScoredBox(box, one.kind, one.confidence))
    # Ties are broken by position: the result does not depend on the order of proposals.
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
"""Models with built-in suppression return at most this many boxes; the others have thousands of
candidates.
"""


@dataclass(frozen=True, slots=True)
class ModelBoxes:
    """Boxes, unordered."""

    boxes: Floats  #: N x 4: x1, y1, x2, y2 in pixels of the input picture
    kinds: npt.NDArray[np.int64]  #: class numbers of the model
    confidences: Floats


def decode_outputs(
    outputs: Outputs, head: Head, picture: tuple[int, int], least: float
) -> ModelBoxes:
    """Return the boxes with a confidence of at least `least` in the outputs of a model.

    `picture` is its input, (width, height).  The heads:

    - yolov8: 1 x (4 + classes) x N; each column has a centre, a size, and a score per class.
    - yolov5: 1 x N x (5 + classes); each row has a centre, a size, an objectness score, and a score
      per class.
    - rows: 1 x N x 6; each row has two corners, a score, and a class.
    - ssd: three outputs: N x 4 corners in pixels, N scores, N classes (torchvision).
    - tensorflow: the same as `detection_boxes` (y1, x1, y2, x2 as fractions of the picture),
      `detection_scores` and `detection_classes`.

    "auto" decides by number, names and shapes of the outputs.  Raises `UsageError` if none matches.
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
    sure = answer.confidences >= least  # False for NaN
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
    # There are more candidates than values for each.
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
    # Classes are integers by type or, failing that, the output is named so.
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
    """Return corner boxes from centres and sizes, with the best class of each."""
    kinds = scores.argmax(axis=1)
    half = places[:, 2:] / 2
    corners = np.hstack([places[:, :2] - half, places[:, :2] + half])
    return ModelBoxes(corners, kinds.astype(np.int64), scores[np.arange(len(scores)), kinds])


def _single_output(outputs: Outputs) -> Floats:
    """Return the first output, for the only picture of the batch."""
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
        f"the outputs of the model ({shapes or 'none'}) do not match the head {head}",
        hint=f"known heads: {', '.join(HEADS[1:])}",
    )

"""Runs a detector that was exported as an ONNX model.

`Letterbox` fits a frame into the model's input; `decode_outputs` reads the outputs of YOLO, SSD and
TensorFlow models.
"""

from __future__ import annotations

import ast
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.core.detections import MAX_TEXT_LENGTH, Box, Detection, DetectionColumns, Source
from vfsd.core.frames import Frame
from vfsd.errors import ExtraMissingError, UsageError
from vfsd.labels.detectors import Found, FrameRequest
from vfsd.labels.formats.label_file import read_names
from vfsd.validation import no_such_file, not_one_of

# Length of a model's metadata about classes; the largest vocabularies have ten thousand words.
_MAX_NAMES_LENGTH = 1 << 20

# Gray value of the bars; all models of Ultralytics are trained with it.
_PADDING_VALUE = 114

# Input size in pixels if the model does not fix it: the training size of YOLO models.
_SIDE = 640

# Pixels. A model with a larger input is not a model of pictures.
_LARGEST_SIDE = 8192

# Size of a model in bytes: protobuf messages cannot be larger.
_MOST_BYTES = (2 << 30) - 1

# Types of input pixels; floating-point ones range from 0 to 1.
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}

Floats = npt.NDArray[np.float64]
Outputs = Mapping[str, npt.NDArray[Any]]

Head = Literal["auto", "yolov5", "yolov8", "rows", "ssd", "tensorflow"]
HEADS: tuple[Head, ...] = ("auto", "yolov5", "yolov8", "rows", "ssd", "tensorflow")

# Models with built-in suppression return at most this many boxes; the others have thousands of
# candidates.
_MOST_ROWS = 1000


def model_class_names(metadata: Mapping[str, str], file: Path | None) -> dict[int, str]:
    """Return class names by number: from `file` (one per line, or a data.yaml), or from the model.

    Ultralytics stores them in the metadata as ``names``.  Raises `UsageError` for invalid labels.
    """
    names = _parse_names(metadata.get("names", "")) if file is None else read_names(file)
    DetectionColumns.of([0] * len(names), list(names.values()), [(0, 0, 1, 1)] * len(names))
    return names


def _parse_names(text: str) -> dict[int, str]:
    """Parse ``{0: 'person', 1: 'car'}`` or ``['person', 'car']``."""
    if not text:
        return {}
    try:
        if len(text) > _MAX_NAMES_LENGTH:
            raise ValueError(len(text))
        value = ast.literal_eval(text)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {int(number): str(name) for number, name in items}
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise UsageError(
            "the class names in the model cannot be parsed", hint="give a file with the names"
        ) from None


@dataclass(frozen=True, slots=True)
class Letterbox:
    """The position of a frame of width x height pixels in an input picture: scaled and centred."""

    width: int
    height: int
    picture: tuple[int, int]  #: (width, height)

    @property
    def scaled_size(self) -> tuple[int, int]:
        """The size that the frame is scaled to, in whole pixels."""
        across, down = self.picture
        scale = min(across / self.width, down / self.height)
        return (
            min(across, max(1, round(self.width * scale))),
            min(down, max(1, round(self.height * scale))),
        )

    @property
    def offset(self) -> tuple[int, int]:
        """The position of the frame's upper left pixel in the picture."""
        return (self.picture[0] - self.scaled_size[0]) // 2, (
            self.picture[1] - self.scaled_size[1]
        ) // 2

    def embed(self, frame: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """Return the picture around a frame (H x W x 3, of size `scaled_size`)."""
        (left, top), (across, down) = self.offset, self.picture
        made = np.full((down, across, 3), _PADDING_VALUE, np.uint8)
        made[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
        return made

    def to_frame(self, boxes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Convert N x 4 corners from pixels of the picture to pixels of the frame.

        Each axis has its own scale, as `scaled_size` is rounded to whole pixels.
        """
        scale = np.array(
            [self.width / self.scaled_size[0], self.height / self.scaled_size[1]] * 2,
            dtype=np.float64,
        )
        moved: npt.NDArray[np.float64] = (boxes - np.array(self.offset * 2)) * scale
        return moved


@dataclass(frozen=True, slots=True)
class _Input:
    """An input declared by a model."""

    name: str
    type: str
    shape: tuple[object, ...]


class OnnxDetector:
    """An ONNX model in a file, run on the CPU.

    It takes one picture (1 x 3 x H x W or 1 x H x W x 3, RGB), and its outputs must be known to
    `vfsd.labels.detectors.onnx`.  Frames are letterboxed.  The resources that a model uses
    are not limited: run only models from trusted sources.

    Raises `ExtraMissingError` without onnxruntime, `NotFoundError`, and `UsageError` for a model
    that cannot be run.

    Args:
        path: The model.
        min_confidence: Drop boxes with a lower confidence.
        overlap: Intersection over union from which on boxes are duplicates.
        head: How to decode the outputs; see `model_outputs.decode_outputs`.
        names: A file with class names, if the model has none.
        label: One label for all boxes instead.
        side: Input size if the model does not fix it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        min_confidence: float = 0.25,  # both defaults are those of YOLOv5's detect.py
        overlap: float = 0.45,
        head: Head = "auto",
        names: str | os.PathLike[str] | None = None,
        label: str | None = None,
        side: int = _SIDE,
    ) -> None:
        if not (0 <= min_confidence <= 1 and 0 <= overlap <= 1):
            raise UsageError("min_confidence and overlap must be 0 to 1")
        if head not in HEADS:
            raise not_one_of("head", head, HEADS)
        self._path = Path(path)
        self._min_confidence, self._overlap, self._head = min_confidence, overlap, head
        self._label = label
        data = _read_model(self._path)
        self._session = _session(data, self._path)
        self._guard = threading.Lock()
        metadata, inputs, self._outputs = _session_metadata(self._session, self._path)
        self._names = model_class_names(metadata, None if names is None else Path(names))
        self._input, self._type, self._first, self._picture = _input_of(inputs, self._path, side)
        self._source = Source(
            "onnx",
            self._path.stem.strip()[:MAX_TEXT_LENGTH],
            hashlib.sha256(data).hexdigest()[:16],
            {
                "min_confidence": min_confidence,
                "overlap": overlap,
                "head": head,
                "picture": "x".join(map(str, self._picture)),
                "labels": label or _digest(self._names),
            },
        )

    @property
    def source(self) -> Source:
        return self._source

    def request(self, width: int, height: int) -> FrameRequest:
        return FrameRequest(Letterbox(width, height, self._picture).scaled_size)

    def detect(self, frames: Iterable[Frame], width: int, height: int) -> Iterator[Found]:
        letterbox = Letterbox(width, height, self._picture)
        for frame in frames:
            found = self._detect(letterbox, frame)
            yield (
                frame.index,
                [
                    Detection(frame.index, self._name(one.kind), one.box, one.confidence)
                    for one in found
                ],
            )

    def _detect(self, letterbox: Letterbox, frame: Frame) -> list[ScoredBox]:
        outputs = self._run(letterbox.embed(frame.data))
        answer = decode_outputs(outputs, self._head, self._picture, self._min_confidence)
        boxes = letterbox.to_frame(answer.boxes)
        proposed = [
            ScoredBox((x1, y1, x2, y2), kind, confidence)
            for (x1, y1, x2, y2), kind, confidence in zip(
                boxes.tolist(), answer.kinds.tolist(), answer.confidences.tolist(), strict=True
            )
        ]
        return non_maximum_suppression(proposed, self._overlap, letterbox.width, letterbox.height)

    def _run(self, picture: npt.NDArray[np.uint8]) -> Mapping[str, npt.NDArray[Any]]:
        pixels = picture.astype(self._type)
        if self._type is not np.uint8:
            pixels /= 255
        if self._first:
            pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        try:
            with self._guard:
                values = self._session.run(None, {self._input: pixels[None]})
        except Exception as error:  # errors of onnxruntime have no common base
            raise UsageError(f"{self._path} cannot be run: {_short_message(error)}") from error
        return dict(zip(self._outputs, values, strict=True))

    def _name(self, kind: int) -> str:
        return self._label or self._names.get(kind, f"class {kind}")


def _read_model(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} must be smaller than 2 GiB")
        return path.read_bytes()
    except FileNotFoundError:
        raise no_such_file(path) from None
    except IsADirectoryError:
        raise UsageError(f"{path} must be a file, but is a directory") from None


def _session(data: bytes, path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise ExtraMissingError(
            "onnxruntime is not installed", hint="pip install 'vfsd[onnx]'"
        ) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised instead
    # A fixed order of additions, so that boxes are reproducible.
    options.use_deterministic_compute = True
    try:
        # There is no other provider; the fallback would print to stdout, which is for data.
        return onnxruntime.InferenceSession(
            data, sess_options=options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as error:  # errors of onnxruntime have no common base
        raise UsageError(
            f"{path} must be a model that onnxruntime can run: {_short_message(error)}",
            hint="give an ONNX model in one file",
        ) from error


def _session_metadata(session: Any, path: Path) -> tuple[dict[str, str], list[_Input], list[str]]:
    """Return (metadata, inputs, names of outputs)."""
    try:
        return (
            dict(session.get_modelmeta().custom_metadata_map),
            [_Input(one.name, one.type, tuple(one.shape)) for one in session.get_inputs()],
            [one.name for one in session.get_outputs()],
        )
    except UnicodeDecodeError:
        raise UsageError(
            f"{path} must be a model that onnxruntime can run: its metadata must be UTF-8"
        ) from None


def _input_of(
    inputs: list[_Input], path: Path, side: int
) -> tuple[str, Any, bool, tuple[int, int]]:
    """Return (name, pixel type, whether channels come first, (width, height))."""
    shape = inputs[0].shape if len(inputs) == 1 else ()
    kind = _TYPES.get(inputs[0].type) if len(inputs) == 1 else None
    if len(shape) == 4 and kind is not None and 3 in (shape[1], shape[3]):
        first = shape[1] == 3
        sides = shape[2:4] if first else shape[1:3]
        # A side that is not fixed has a name, or no value.
        height, width = (one if isinstance(one, int) and one > 0 else side for one in sides)
        if max(width, height) <= _LARGEST_SIDE:
            return inputs[0].name, kind, first, (width, height)
    said = ", ".join(f"{one.name!r} {one.type} {one.shape}" for one in inputs)
    raise UsageError(
        f"the input of {path} must be one picture, got {said or 'nothing'}",
        hint="export it with an input of 1 x 3 x height x width, or 1 x height x width x 3",
    )


def _digest(names: Mapping[int, str]) -> str:
    return hashlib.sha256(repr(sorted(names.items())).encode()).hexdigest()[:16]


def _short_message(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return "".join(c if c.isprintable() else "?" for c in lines[0][:200]) if lines else "no reason"


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
        head = _detect_head(plain)
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


def _detect_head(outputs: Outputs) -> Head:
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

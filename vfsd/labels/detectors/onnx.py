"""Any detector that somebody has exported as an ONNX model."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vfsd.core.detections import MOST_LETTERS, Detection, Source
from vfsd.core.frames import Frame
from vfsd.errors import ExtraMissingError, UsageError
from vfsd.labels.detectors.classes import class_names
from vfsd.labels.detectors.detector import Found, Wanted
from vfsd.labels.detectors.letterbox import Letterbox
from vfsd.labels.detectors.model_outputs import HEADS, Head, read_answer
from vfsd.labels.detectors.nms import Scored, best_of
from vfsd.validation import no_such_file, not_one_of

_SIDE = 640
"""Pixels of either side where a model leaves them open: what YOLO models are trained with."""

_LARGEST_SIDE = 8192
"""Pixels.  A file that asks for more is no model of pictures."""

_MOST_BYTES = (2 << 30) - 1
"""Of a model: protobuf has no larger messages."""

_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}
"""Of pixels; the floating ones run from 0 to 1."""


@dataclass(frozen=True, slots=True)
class _Input:
    """What a model says it takes."""

    name: str
    type: str
    shape: tuple[object, ...]


class OnnxDetector:
    """An ONNX model in a file, run on the processor.

    It takes one picture (1 x 3 x H x W or 1 x H x W x 3; RGB) and answers in a way that
    `vfsd.labels.detectors.model_outputs` knows.  Frames are letterboxed.  `names` is a file with
    the names of its classes, where the model does not hold them; `label` is given to all boxes
    instead.  `side` is the picture's where the model leaves it open.  What a file makes a
    processor do is not limited: use models of people you trust.

    Raises `ExtraMissingError` without onnxruntime, `NotFoundError`, `UsageError` for what cannot
    be run.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        min_confidence: float = 0.25,  # this and the next: what YOLOv5's detect.py takes
        overlap: float = 0.45,
        head: Head = "auto",
        names: str | os.PathLike[str] | None = None,
        label: str | None = None,
        side: int = _SIDE,
    ) -> None:
        if not (0 <= min_confidence <= 1 and 0 <= overlap <= 1):
            raise UsageError("a confidence and an overlap lie within 0 and 1")
        if head not in HEADS:
            raise not_one_of("head", head, HEADS)
        self._path = Path(path)
        self._min_confidence, self._overlap, self._head = min_confidence, overlap, head
        self._label = label
        data = _bytes_of(self._path)
        self._session = _session(data, self._path)
        self._guard = threading.Lock()
        metadata, inputs, self._outputs = _described(self._session, self._path)
        self._names = class_names(metadata, None if names is None else Path(names))
        self._input, self._type, self._first, self._picture = _input_of(inputs, self._path, side)
        self._source = Source(
            "onnx",
            self._path.stem.strip()[:MOST_LETTERS],
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

    def wants(self, width: int, height: int) -> Wanted:
        return Wanted(Letterbox(width, height, self._picture).shown)

    def find(self, frames: Iterable[Frame], width: int, height: int) -> Iterator[Found]:
        letterbox = Letterbox(width, height, self._picture)
        for frame in frames:
            found = self._find(letterbox, frame)
            yield (
                frame.index,
                [
                    Detection(frame.index, self._name(one.kind), one.box, one.confidence)
                    for one in found
                ],
            )

    def _find(self, letterbox: Letterbox, frame: Frame) -> list[Scored]:
        outputs = self._run(letterbox.place(frame.data))
        answer = read_answer(outputs, self._head, self._picture, self._min_confidence)
        boxes = letterbox.back(answer.boxes)
        proposed = [
            Scored((x1, y1, x2, y2), kind, confidence)
            for (x1, y1, x2, y2), kind, confidence in zip(
                boxes.tolist(), answer.kinds.tolist(), answer.confidences.tolist(), strict=True
            )
        ]
        return best_of(proposed, self._overlap, letterbox.width, letterbox.height)

    def _run(self, picture: npt.NDArray[np.uint8]) -> Mapping[str, npt.NDArray[Any]]:
        pixels = picture.astype(self._type)
        if self._type is not np.uint8:
            pixels /= 255
        if self._first:
            pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        try:
            with self._guard:
                values = self._session.run(None, {self._input: pixels[None]})
        except Exception as error:  # onnxruntime's own have no common base
            raise UsageError(f"{self._path} cannot be run: {_in_short(error)}") from error
        return dict(zip(self._outputs, values, strict=True))

    def _name(self, kind: int) -> str:
        return self._label or self._names.get(kind, f"class {kind}")


def _bytes_of(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is larger than any ONNX model")
        return path.read_bytes()
    except FileNotFoundError:
        raise no_such_file(path) from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a directory") from None


def _session(data: bytes, path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise ExtraMissingError(
            "onnxruntime is not installed", hint="pip install 'vfsd[onnx]'"
        ) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised; nothing is printed besides
    # One order of additions, whatever else the machine does: the same boxes each time.
    options.use_deterministic_compute = True
    try:
        # There is nothing to fall back to; trying would print to stdout, which is for data.
        return onnxruntime.InferenceSession(
            data, sess_options=options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as error:  # onnxruntime's own have no common base
        raise UsageError(
            f"{path} must be a model that onnxruntime can run: {_in_short(error)}",
            hint="give an ONNX model in one file",
        ) from error


def _described(session: Any, path: Path) -> tuple[dict[str, str], list[_Input], list[str]]:
    """(metadata, inputs, names of outputs)"""
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
    """(name, type of pixels, whether colours come first, (width, height))"""
    shape = inputs[0].shape if len(inputs) == 1 else ()
    kind = _TYPES.get(inputs[0].type) if len(inputs) == 1 else None
    if len(shape) == 4 and kind is not None and 3 in (shape[1], shape[3]):
        first = shape[1] == 3
        sides = shape[2:4] if first else shape[1:3]
        # A side that is left open is a name, or nothing.
        height, width = (one if isinstance(one, int) and one > 0 else side for one in sides)
        if max(width, height) <= _LARGEST_SIDE:
            return inputs[0].name, kind, first, (width, height)
    said = ", ".join(f"{one.name!r} {one.type} {one.shape}" for one in inputs)
    raise UsageError(
        f"{path} does not take a picture, but {said or 'nothing'}",
        hint="the input has to be one picture: 1 x 3 x height x width, or 1 x height x width x 3",
    )


def _digest(names: Mapping[int, str]) -> str:
    return hashlib.sha256(repr(sorted(names.items())).encode()).hexdigest()[:16]


def _in_short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return "".join(c if c.isprintable() else "?" for c in lines[0][:200]) if lines else "no reason"

"""Detectors find objects in frames.

`make_detector` builds one from its name on the command line; any object with the `Detector`
protocol works.
"""

from __future__ import annotations

from pathlib import Path

from vfsd.errors import UsageError
from vfsd.labels.detectors.detector import Detector, Every, FrameRequest
from vfsd.labels.detectors.motion import MotionDetector, motion_regions
from vfsd.labels.detectors.onnx import OnnxDetector
from vfsd.validation import not_one_of

__all__ = [
    "Detector",
    "Every",
    "FrameRequest",
    "MotionDetector",
    "OnnxDetector",
    "make_detector",
    "motion_regions",
]


def make_detector(
    text: str,
    *,
    every: Every = 1,
    min_confidence: float | None = None,
    label: str | None = None,
    names: Path | None = None,
) -> Detector:
    """``motion`` or ``onnx:MODEL.onnx``, with default settings where none are given.

    `every` matters to those alone whose findings depend on it.  Raises `UsageError`, and what
    the detector itself raises.
    """
    kind, _, path = text.partition(":")
    if names is not None and kind != "onnx":
        raise UsageError(f"{text} has no classes to name")
    if text == "motion":
        if min_confidence is not None:
            raise UsageError("motion has no confidence")
        return MotionDetector(every) if label is None else MotionDetector(every, label)
    if kind == "onnx" and path:
        if min_confidence is None:
            return OnnxDetector(path, label=label, names=names)
        return OnnxDetector(path, label=label, names=names, min_confidence=min_confidence)
    raise not_one_of("the detector", text, ("motion", "onnx:MODEL.onnx"))

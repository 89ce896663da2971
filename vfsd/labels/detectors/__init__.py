"""Detectors find objects in frames.

`make_detector` builds one from its name on the command line; any object with the `Detector`
protocol works.
"""

from __future__ import annotations

from pathlib import Path

from vfsd.errors import UsageError
from vfsd.labels.detectors.detector import Detector, Every, FrameRequest
from vfsd.validation import not_one_of

__all__ = [
    "Detector",
    "Every",
    "FrameRequest",
    "make_detector",
]


def make_detector(
    text: str,
    *,
    every: Every = 1,
    min_confidence: float | None = None,
    label: str | None = None,
    names: Path | None = None,
) -> Detector:
    """Build the detector ``motion`` or ``onnx:MODEL.onnx``.  Raises `UsageError` and its own
    errors.

    Args:
        text: The name of the detector.
        every: The step between frames; used only by detectors with results that depend on it.
        min_confidence: None: the default of the detector.
        label: None: the default of the detector.
        names: A file with class names.
    """
    kind, _, path = text.partition(":")
    if names is not None and kind != "onnx":
        raise UsageError(f"names requires an ONNX model; {text} has no classes")
    # OpenCV and ONNX Runtime are slow to import; each is loaded for its own detector only.
    if text == "motion":
        from vfsd.labels.detectors.motion import MotionDetector

        if min_confidence is not None:
            raise UsageError("min_confidence requires an ONNX model; motion has no confidence")
        return MotionDetector(every) if label is None else MotionDetector(every, label)
    if kind == "onnx" and path:
        from vfsd.labels.detectors.onnx import OnnxDetector

        if min_confidence is None:
            return OnnxDetector(path, label=label, names=names)
        return OnnxDetector(path, label=label, names=names, min_confidence=min_confidence)
    raise not_one_of("detector", text, ("motion", "onnx:MODEL.onnx"))

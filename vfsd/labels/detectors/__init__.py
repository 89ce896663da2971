"""Detectors: what looks at frames and says what is in them.

A detector is anything that `Detector` describes.  `vfsd.Video.detect` shows it frames and keeps
what it finds; nothing in here knows stores or videos, and nothing is downloaded.
"""

from vfsd.labels.detectors.detector import Detector, Every, Wanted
from vfsd.labels.detectors.motion import MotionDetector, motion_regions
from vfsd.labels.detectors.onnx import OnnxDetector
from vfsd.labels.detectors.registry import detector_named

__all__ = [
    "Detector",
    "Every",
    "MotionDetector",
    "OnnxDetector",
    "Wanted",
    "detector_named",
    "motion_regions",
]

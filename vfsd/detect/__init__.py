"""Detectors: what looks at frames and says what is in them.

A detector is anything that `Detector` describes.  `vfsd.Video.detect` shows it frames and keeps
what it finds; nothing in here knows stores or videos, and nothing is downloaded.
"""

from vfsd.detect.detector import Detector, Every, Wanted
from vfsd.detect.motion import MotionDetector, motion_regions
from vfsd.detect.named import detector_named
from vfsd.detect.onnxmodel import OnnxDetector
from vfsd.detect.people import PeopleDetector

__all__ = [
    "Detector",
    "Every",
    "MotionDetector",
    "OnnxDetector",
    "PeopleDetector",
    "Wanted",
    "detector_named",
    "motion_regions",
]

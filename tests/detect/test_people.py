"""People, by OpenCV's detector; where this OpenCV has none, that it says so."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from vfsd import Frame, Store
from vfsd.errors import ExtraMissingError, UsageError
from vfsd.labels.detectors import PeopleDetector

HAS_HOG = hasattr(cv2, "HOGDescriptor")
needs_hog = pytest.mark.skipif(
    not HAS_HOG, reason="this OpenCV has no HOGDescriptor: pip install 'vfsd[people]'"
)


@pytest.mark.skipif(HAS_HOG, reason="this OpenCV has a HOGDescriptor")
def test_an_opencv_without_it_says_what_to_install() -> None:
    with pytest.raises(ExtraMissingError) as caught:
        PeopleDetector()
    assert "pip install 'vfsd[people]'" in str(caught.value.hint)


@needs_hog
def test_nobody_is_in_an_empty_picture() -> None:
    detector = PeopleDetector()
    assert detector.wants(1920, 1080).size == (960, 540)
    assert detector.wants(320, 240).size == (640, 480)
    frame = Frame(np.full((480, 640, 1), 90, np.uint8), 5, 0, 0.0, 0.1)
    assert list(detector.find([frame], 320, 240)) == [(5, [])]
    with pytest.raises(UsageError):
        PeopleDetector(min_confidence=2)


@needs_hog
@pytest.mark.footage
def test_people_in_the_street_are_found(store: Store, footage: Path) -> None:
    video = store.ingest(footage / "real" / "phone_pan_campus_720p.mp4", "c.mp4")
    assert video.detect(PeopleDetector(), every=40) > 0
    people = list(video.detections("person"))
    assert all(one.clipped(video.width, video.height) == one for one in people)
    assert all(0.6 <= (one.confidence or 0) <= 1 for one in people)
    assert {one.frame % 40 for one in people} == {0}
    first = [(one.frame, one.box, one.confidence) for one in people]
    video.detect(PeopleDetector(), every=40, replace=True)
    assert first == [(one.frame, one.box, one.confidence) for one in video.detections("person")]

"""A store with some sample videos."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd import Detection, Store

CLIPS = ("traffic.mp4", "portrait.mp4", "open-gop.mkv", "late-start.mp4")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(tmp_path_factory.mktemp("torch") / "s") as made:
        for clip in CLIPS:
            made.ingest(FOLDER / clip, f"cam/{clip}")
        boxes = [Detection(frame, "car", (10, 20, 50, 60)) for frame in (40, 41)]
        made["cam/traffic.mp4"].labels.add(boxes, source="test")
        yield made

"""A store with three videos, boxes, tiles and a logged read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.core.detections import Detection, Source

NAMES = ("cam1/portrait.mp4", "cam1/traffic.mp4", "cam2/open-gop.mkv")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(tmp_path_factory.mktemp("tables") / "store") as made:
        for name in NAMES:
            made.ingest(FOLDER / name.rpartition("/")[2], name)
        traffic = made["cam1/traffic.mp4"]
        boxes = [
            Detection(5, "car", (5, 1.5, 7, 3), 0.5, 7, None, {"lane": 3}),
            Detection(2, "car", (2, 1.5, 4, 3)),
            Detection(2, "bus", (2, 1.5, 4, 3), 0.25),
            Detection(90, "bus", (90, 1.5, 92, 3), 1.0, 8, None, {"wet": True}),
        ]
        traffic.labels.add(boxes, Source("net", "m", "2"))
        made["cam2/open-gop.mkv"].labels.add([(1, "car", (1, 2, 3, 4))], "me")
        numbers = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float16)
        frames = range(0, 12, 2)
        made["cam1/portrait.mp4"].vectors.add(numbers, frames, Source("clip", "small"))
        made["cam1/portrait.mp4"].tiles.retile("uniform:2x2")
        traffic.read(span=(0, 1), region=(10, 20, 90, 100), size=(40, 40))
        made.tools.read_log.flush()
        yield made

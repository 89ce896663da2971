from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.detections import Detection, Source

CLIPS = ("traffic.mp4", "portrait.mp4", "open-gop.mkv", "images/odd-size.webm")
NET = Source("net", "resnet", "3")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with four videos, each with boxes of three labels and 21 examined frames."""
    with new_store(tmp_path_factory.mktemp("datasets") / "store") as store:
        for name in CLIPS:
            _add(store, name)
        yield store


@pytest.fixture
def videos(full: Store) -> list[Video]:
    return [full[f"cam1/{name}"] for name in CLIPS]


def _add(store: Store, name: str) -> None:
    video = store.ingest(FOLDER / Path(name).name, f"cam1/{name}")
    rows = [Detection(at, "car", (10, 20.5, 60.25, 50), 0.5, at // 10) for at in (0, 5, 20)]
    rows.append(Detection(5, "person", (-10.0, 20, 30, 5000.0), None, 7))
    rows.append(Detection(6, "person", (-10.0, 20, -1, 50)))
    rows.append(Detection(25, "red", (1, 2, 3, 4)))
    video.labels.add(rows, NET, examined=[range(0, 21)])

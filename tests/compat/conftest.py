"""A store with the clips of sample_videos, and a small one with known frames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd.compat.resolve import close_stores

SIZE = 160, 120
DRAWN = 100
"""Frames of drawn.avi; see `drawn`."""


def drawn(number: int, size: tuple[int, int] = SIZE) -> npt.NDArray[np.uint8]:
    """A BGR picture that shows its number, as OpenCV's tests of positions draw it."""
    width, height = size
    color = (
        abs(np.cos(number * 0.08)) * 255,
        abs(np.sin(number * 0.05)) * 255,
        number,
    )
    picture = np.full((height, width, 3), color, np.float64).astype(np.uint8)
    cv2.putText(
        picture, f"{number:03d}", (5, height * 3 // 4), 0, width / 64, (128, 255, 255), width // 40
    )
    return picture


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with drawn.avi and with copies of some sample videos."""
    folder = tmp_path_factory.mktemp("clips")
    writer = cv2.VideoWriter(
        str(folder / "drawn.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 25, SIZE, True
    )
    for number in range(DRAWN):
        writer.write(drawn(number))
    writer.release()
    for name in ("traffic.mp4", "portrait.mp4", "open-gop.mkv", "edit-list.mp4", "late-start.mp4"):
        (folder / name).write_bytes((FOLDER / name).read_bytes())
    return folder


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory, clips: Path) -> Path:
    """The directory of a store with these clips below cam1."""
    path = tmp_path_factory.mktemp("compat") / "store"
    with new_store(path) as store:
        for clip in sorted(clips.iterdir()):
            store.ingest(clip, f"cam1/{clip.name}")
    return path


@pytest.fixture
def named(filled: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """That store, named by $VFSD_STORE."""
    monkeypatch.setenv("VFSD_STORE", str(filled))
    yield filled
    close_stores()

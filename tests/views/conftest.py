"""A store with every sample video, and its views as seen by a program that opens files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import pytest

from sample_videos import CLIPS, FOLDER
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.view_request import ViewFile
from vfsd.views import Views

BLOCK = 131072
"""Size of the kernel's read requests in bytes."""


@dataclass(frozen=True)
class Shelf:
    """Views of the videos of a store, by name."""

    store: Store
    views: Views

    def video(self, name: str) -> Video:
        return self.store[name]

    def size(self, name: str, path: str) -> int:
        return self.views.stat(self.video(name).info.ino, path).size

    def open(self, name: str, path: str) -> ViewFile:
        return self.views.open(self.video(name).info.ino, path)

    def read(self, name: str, path: str) -> bytes:
        """The whole file, block by block."""
        file = self.open(name, path)
        try:
            data = bytearray(file.size)
            at = 0
            while count := file.readinto(memoryview(data)[at : at + BLOCK], at):
                at += count
        finally:
            file.close()
        assert at == len(data)
        return bytes(data)


@pytest.fixture(scope="session")
def filled_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(tmp_path_factory.mktemp("views") / "store") as store:
        for name in CLIPS:
            store.ingest(FOLDER / name, name)
        yield store


@pytest.fixture(scope="session")
def shelf(filled_store: Store) -> Iterator[Shelf]:
    views = Views(filled_store.parts, filled_store.tools)
    yield Shelf(filled_store, views)
    views.close()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Shelf]:
    """A store with one video, before any read of its views."""
    with new_store(tmp_path / "store") as store:
        store.ingest(FOLDER / "traffic.mp4", "traffic.mp4")
        views = Views(store.parts, store.tools)
        yield Shelf(store, views)
        views.close()


def decoded(data: bytes) -> list[av.VideoFrame]:
    """All frames of a file, read by PyAV."""
    with av.open(io.BytesIO(data), mode="r") as opened:
        return list(opened.decode(video=0))

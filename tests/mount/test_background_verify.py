"""Verifying frame tables in the background of a mount, with many that cannot be verified."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sample_videos import FOLDER
from tests.support.catalog_rows import add_video
from vfsd.api.store import Store
from vfsd.core.model import LogicalVideo
from vfsd.mount.background_work import BackgroundVerifier


@pytest.fixture(scope="session", autouse=True)
def fuse() -> None:
    """Nothing is mounted here."""


@contextmanager
def verifying(store: Store) -> Iterator[None]:
    verifier = BackgroundVerifier(store)
    try:
        yield
    finally:
        verifier.close()


def comes_true(question: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not question():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def is_verified(store: Store, name: str) -> bool:
    return store[name].original.verified


@pytest.mark.thorough
def test_old_video_verified(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.ingest(FOLDER / "portrait.mp4", "old.mp4")
    with store.catalog.writing() as change:  # their bytes are gone
        for number in range(230):
            add_video(change, f"{number}.mp4", key=f"{number:064x}")
    unverified = store.catalog.unverified
    asked: list[int | None] = []

    def noted(limit: int = 100, *, before_id: int | None = None) -> list[LogicalVideo]:
        asked.append(before_id)
        return unverified(limit, before_id=before_id)

    monkeypatch.setattr(store.catalog, "unverified", noted)
    monkeypatch.setattr("vfsd.mount.background_work._PAUSE_SECONDS", 0.2)
    with verifying(store):
        assert comes_true(lambda: is_verified(store, "old.mp4"))
        assert len(unverified(1000)) == 230
        assert comes_true(lambda: len(asked) >= 3 + 4)
        # From now on the search covers only videos newer than all that have failed.
        store.ingest(FOLDER / "traffic.mp4", "new.mp4")
        assert comes_true(lambda: is_verified(store, "new.mp4"))
        assert comes_true(lambda: len(asked) >= 9)
        store.remove("new.mp4")
        assert comes_true(lambda: len(asked) >= 10)
    assert set(asked[7:]) == {None}

"""A store with a verified video, on SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd.api.store import Store

NAMES = ("a.mp4", "b.mp4")


@pytest.fixture
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """A function that makes a store with two verified videos."""
    with ExitStack() as stack:

        def make(catalog: str = "sqlite", name: str = "store") -> Store:
            if catalog == "sqlite":
                store = stack.enter_context(new_store(tmp_path / name))
            else:
                url = request.getfixturevalue("own_database")
                store = stack.enter_context(Store.create(tmp_path / name, catalog_url=url))
            for each, clip in zip(NAMES, ("traffic.mp4", "portrait.mp4"), strict=True):
                store.ingest(FOLDER / clip, each).verify()
            return store

        yield make


@pytest.fixture
def store(make_store: Callable[..., Store]) -> Store:
    return make_store()

"""Many reads at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd.api.bulk_reads import Request
from vfsd.api.reading import ReadOptions
from vfsd.api.store import Store
from vfsd.errors import NotFoundError, OutOfRangeError


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path / "store") as opened:
        for name in ("traffic.mp4", "portrait.mp4", "open-gop.mov"):
            opened.ingest(FOLDER / name)
        yield opened


def some_requests(store: Store, count: int) -> list[Request]:
    rng = np.random.default_rng(count)
    found: list[Request] = []
    for _ in range(count):
        name = str(rng.choice(list(store)))
        first = int(rng.integers(0, len(store[name]) - 5))
        what: ReadOptions = {"frames": range(first, first + int(rng.integers(1, 5)))}
        if rng.random() < 0.5:
            what["size"] = (64, 48)
        found.append((name, what))
    return found


def test_batch_equals_single_reads(store: Store) -> None:
    requests = some_requests(store, 30)
    together = list(store.read_many(iter(requests)))
    assert len(together) == len(requests)
    for (name, what), frames in zip(requests, together, strict=True):
        alone = store[name].read(**what)
        assert np.array_equal(frames.data, alone.data)
        assert frames.index.tolist() == alone.index.tolist()


def test_errors_arrive_in_request_order(store: Store) -> None:
    good: Request = ("traffic.mp4", {"frames": [3]})
    reading = store.read_many([good, good, ("traffic.mp4", {"span": (99, 100)}), good])
    assert [len(next(reading)) for _ in range(2)] == [1, 1]
    with pytest.raises(OutOfRangeError):
        next(reading)
    assert list(reading) == []
    with pytest.raises(NotFoundError):
        next(store.read_many([("none.mp4", {})]))


def test_prefetch_is_bounded(store: Store) -> None:
    asked = []

    def requests() -> Iterator[Request]:
        for number in range(100):
            asked.append(number)
            yield "traffic.mp4", {"frames": [number]}

    reading = store.read_many(requests())
    next(reading)
    assert len(asked) < 20
    del reading
    assert list(store.read_many([])) == []

"""`VideoVectors` and `Store.nearest`: vectors as they were given, and the nearest of them."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.killing import killed_at_rename
from tests.support.missing_frame import FRAMES, HOLE, make_clip
from tests.support.stores import new_store
from vfsd import Store, Video
from vfsd.api import vector_search
from vfsd.api.vector_search import VectorSet
from vfsd.core.detections import Source
from vfsd.errors import (
    ExistsError,
    IntegrityError,
    NotFoundError,
    OutOfRangeError,
    ReadOnlyError,
    UsageError,
)
from vfsd.maintenance import fsck

CLIP = Source("clip", "ViT-B/32")
_FORK = multiprocessing.get_context("fork")


@pytest.fixture
def video(store: Store) -> Video:
    return store.ingest(FOLDER / "traffic.mp4", "cam1/a.mp4")


def drawn(rows: int, dimension: int = 24, seed: int = 0, dtype: str = "float16") -> Any:
    """Rows in a few clusters away from 0, as models give them."""
    random = np.random.default_rng(seed)
    middles = random.normal(size=(20, dimension)) + 2
    return (middles[random.integers(0, 20, rows)] + random.normal(size=(rows, dimension))).astype(
        dtype
    )


def objects_of(store: Store) -> set[str]:
    return set(store.parts.objects.all_keys())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_numbers_come_back_exactly(video: Video, dtype: str) -> None:
    matrix = drawn(60, dtype=dtype)
    matrix[0] = np.finfo(dtype).max
    matrix[1] = np.finfo(dtype).smallest_subnormal
    runs = [(2 * at, 2 * at + 2) for at in range(60)]
    assert video.vectors.add(matrix[::-1], runs[::-1], CLIP) == 60
    found = video.vectors.get()
    assert (found.source, found.matrix.dtype) == (CLIP, np.dtype(dtype))
    assert np.array_equal(found.matrix.view(np.uint8), matrix.view(np.uint8))
    assert found.frames.tolist() == [list(run) for run in runs]
    (summary,) = video.vectors.sources()
    assert (summary.vectors, summary.dimension, summary.dtype) == (60, 24, dtype)
    assert (summary.first_frame, summary.end_frame) == (0, 120)


def test_single_frames_ranges_and_two_types(video: Video) -> None:
    matrix = drawn(6)
    video.vectors.add(matrix[:2], np.array([7, 3]), CLIP)
    video.vectors.add(matrix[2:4], [range(10, 20), range(0, 5)], CLIP)
    wide = matrix[4:].astype(np.float32) / 3
    video.vectors.add(wide, [(1, 2), (0, 120)], CLIP)
    found = video.vectors.get("clip")
    assert found.matrix.dtype == np.float32
    assert found.frames.tolist() == [[0, 5], [0, 120], [1, 2], [3, 4], [7, 8], [10, 20]]
    expected = np.concatenate([matrix[[3]], wide[[1, 0]], matrix[[1, 0, 2]]])
    assert np.array_equal(found.matrix, expected)
    assert video.vectors.add(matrix[:0], [], CLIP) == 0


REFUSED: dict[str, tuple[Callable[[Any, Any], object], type[Exception], str]] = {
    "type": (
        lambda video, one: video.vectors.add(one.astype(float), [50], CLIP),
        UsageError,
        "must be float16 or float32, got float64",
    ),
    "shape": (lambda video, one: video.vectors.add(one[0], [50], CLIP), UsageError, "N x dim"),
    "NaN": (lambda video, one: video.vectors.add(one * np.nan, [50], CLIP), UsageError, "row 0"),
    "dimension": (
        lambda video, one: video.vectors.add(one[:, :3], [50], CLIP),
        UsageError,
        "have 24 numbers, got 3",
    ),
    "number of runs": (
        lambda video, one: video.vectors.add(one, [50, 51], CLIP),
        UsageError,
        "1 vectors, 2 runs",
    ),
    "empty run": (lambda video, one: video.vectors.add(one, [(5, 5)], CLIP), UsageError, "<"),
    "words": (lambda video, one: video.vectors.add(one, ["x"], CLIP), UsageError, "must be numb"),
    "times": (lambda video, one: video.vectors.add(one, [0.5], CLIP), UsageError, "must be numb"),
    "frame": (lambda video, one: video.vectors.add(one, [120], CLIP), OutOfRangeError, "no frame"),
    "twice": (
        lambda video, one: video.vectors.add(np.concatenate([one, one]), [50, 50], CLIP),
        UsageError,
        "given twice",
    ),
    "again": (lambda video, one: video.vectors.add(one, [3], CLIP), ExistsError, r"\(3, 4\)"),
    "unknown": (lambda video, one: video.vectors.get("dino"), NotFoundError, "of dino"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_change_nothing(store: Store, video: Video, what: str) -> None:
    matrix = drawn(1)
    video.vectors.add(matrix, [3], CLIP)
    before = objects_of(store)
    call, error, text = REFUSED[what]
    with pytest.raises(error, match=text):
        call(video, matrix)
    assert objects_of(store) == before
    assert len(video.vectors.get()) == 1


def test_one_by_one_gives_few_objects(store: Store, video: Video) -> None:
    matrix = drawn(40)
    for at in range(40):
        video.vectors.add(matrix[at : at + 1], [at], CLIP)
    assert np.array_equal(video.vectors.get().matrix, matrix)
    assert len(objects_of(store)) <= 9
    assert video.vectors.add(matrix[:2], [0, 1], CLIP, replace=True) == 2
    assert len(video.vectors.get()) == 2
    assert len(objects_of(store)) == 2
    video.vectors.add(matrix, range(40), "dino")
    with pytest.raises(UsageError, match="several sources: clip ViT-B/32, dino"):
        video.vectors.get()
    assert (video.vectors.remove("dino"), video.vectors.remove(), video.vectors.remove()) == (
        40,
        2,
        0,
    )
    assert len(objects_of(store)) == 1
    with Store.open(store.path, read_only=True) as other, pytest.raises(ReadOnlyError):
        other["cam1/a.mp4"].vectors.add(matrix[:1], [0], CLIP)


@pytest.mark.parametrize("server", [False, True], ids=["sqlite", "postgresql"])
def test_two_processes_add_at_once(
    tmp_path: Path, server: bool, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("own_database") if server else None
    matrix = drawn(60)
    with Store.create(tmp_path / "store", catalog_url=url) as store:
        store.ingest(FOLDER / "traffic.mp4", "a.mp4")

    def add(first: int) -> None:
        with Store.open(tmp_path / "store") as store:
            for at in range(first, 60, 2):
                store["a.mp4"].vectors.add(matrix[at : at + 1], [at], CLIP)

    workers = [_FORK.Process(target=add, args=(first,)) for first in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    with Store.open(tmp_path / "store") as store:
        assert np.array_equal(store["a.mp4"].vectors.get().matrix, matrix)
        assert fsck.run(store.parts, deep=True) == []
        assert len(objects_of(store)) <= 12


def test_killed_while_adding(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.ingest(FOLDER / "traffic.mp4", "a.mp4")
        for at in range(8):
            store["a.mp4"].vectors.add(drawn(8)[at : at + 1], [at], CLIP)

    def add(begin: Callable[[], None]) -> None:
        with Store.open(tmp_path / "store") as store:
            begin()
            store["a.mp4"].vectors.add(drawn(2), [50, 51], CLIP)

    number = 0
    while killed_at_rename(number, add):
        number += 1
        with Store.open(tmp_path / "store") as store:
            assert len(store["a.mp4"].vectors.get()) in (8, 10)
            assert {one.check for one in fsck.run(store.parts, deep=True)} <= {"garbage"}
            fsck.collect(store.parts)
            assert fsck.run(store.parts, deep=True) == []
            if len(store["a.mp4"].vectors.get()) == 10:
                return
    with Store.open(tmp_path / "store") as store:
        assert number > 0
        assert len(store["a.mp4"].vectors.get()) == 10


def test_vectors_go_with_the_video_or_its_bytes(store: Store, video: Video) -> None:
    video.vectors.add(drawn(5), range(5), CLIP)
    store.move("cam1/a.mp4", "b.mp4")
    assert len(store["b.mp4"].vectors.get()) == 5
    changed = store.ingest(FOLDER / "portrait.mp4", "b.mp4", replace=True)
    assert changed.vectors.sources() == []
    changed.vectors.add(drawn(5), range(5), CLIP)
    with pytest.raises(NotFoundError):
        video.vectors.get()
    store.remove("b.mp4")
    assert objects_of(store) == set()


def test_vectors_stay_with_their_frames(tmp_path: Path, store: Store) -> None:
    video = store.ingest(make_clip(tmp_path / "a.mp4"), "a.mp4")
    matrix = drawn(4)
    runs = [(0, 10), (HOLE, HOLE + 1), (HOLE - 1, HOLE + 2), (90, FRAMES)]
    video.vectors.add(matrix, runs, CLIP)
    with Store.open(store.path) as other:
        assert other["a.mp4"].verify()
        found = other["a.mp4"].vectors.get()
        assert found.frames.tolist() == [[0, 10], [HOLE - 1, HOLE + 1], [89, FRAMES - 1]]
        assert np.array_equal(found.matrix, matrix[[0, 2, 3]])
        assert other["a.mp4"].vectors.sources()[0].vectors == 3
        assert [one.frames for one in other.nearest(matrix[1], 10)] != []
        assert other.nearest(matrix[1], 10).vectors == 3
        assert fsck.run(other.parts) == []
    with pytest.raises(NotFoundError, match="renumbered"):
        video.vectors.add(matrix[:1], [1], CLIP)


def test_nearest_is_that_of_brute_force(
    store: Store, video: Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = store.ingest(FOLDER / "portrait.mp4", "b.mp4")
    runs = [(first, end) for first in range(100) for end in range(first + 1, 101)][:3000]
    matrix = drawn(3000)
    matrix[17] = 0
    video.vectors.add(matrix[:2000], runs[:2000], CLIP)
    video.vectors.add(matrix[2000:2500], runs[2000:2500], CLIP)
    other.vectors.add(matrix[2500:2525].astype(np.float32), range(25), CLIP)
    wide = matrix[:2525].astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1)
    wide /= np.where(lengths > 0, lengths, 1)[:, None]
    places = [("cam1/a.mp4", run) for run in runs[:2500]] + [
        ("b.mp4", (at, at + 1)) for at in range(25)
    ]

    def truth(query: Any, count: int, among: range) -> list[tuple[str, tuple[int, int]]]:
        scores = wide[among.start : among.stop] @ (query / np.linalg.norm(query))
        order = np.argsort(-scores, kind="stable")[:count]
        return [places[among.start + at] for at in order.tolist()]

    def places_of(found: Any) -> list[tuple[str, tuple[int, int]]]:
        return [(one.video, (one.frames.start, one.frames.stop)) for one in found]

    for seed in range(5):
        query = drawn(1, seed=seed + 1, dtype="float32")[0].astype(np.float64)
        found = store.nearest(query, 7)
        assert places_of(found) == truth(query, 7, range(2525))
        assert (found.vectors, found.compared, found.recall) == (2525, 2525, 1.0)
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        some = store.nearest(query, 30, source="clip", names="b*")
        assert places_of(some) == truth(query, 25, range(2500, 2525))
    assert found.explain() == "exact: all 2525 vectors were compared"
    # The vector of frames, which is left out itself.
    mine = store.nearest(("b.mp4", 3), 3, names=["cam1/*", "b.mp4"])
    assert places_of(mine) == truth(wide[2503], 4, range(2525))[1:]
    assert mine[0].name == f"frames={mine[0].frames.start}-{mine[0].frames.stop}"
    # By signs first, as for many.
    monkeypatch.setattr(vector_search, "EXACT_ROWS", 1000)
    again = store.nearest(wide[2503], 4, measure=True)
    assert places_of(again) == truth(wide[2503], 4, range(2525))
    assert (again.compared, again.recall) == (500, 1.0)
    assert re.search("signs of 2525 vectors chose 500.*recall 1.000, meas", again.explain())
    assert store.nearest(wide[2503], 4).recall is None
    assert store.nearest(wide[2503], 4, exact=True).compared == 2525


def test_each_change_is_seen_by_the_next_search(
    store: Store, video: Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_search, "EXACT_ROWS", 1000)
    runs = [(first, end) for first in range(120) for end in range(first + 1, 121)][:3000]
    matrix = drawn(3000)
    video.vectors.add(matrix[:2000], runs[:2000], CLIP)

    def best(row: int) -> tuple[str, tuple[int, int], int]:
        found = store.nearest(matrix[row], 1)
        assert found.compared < found.vectors
        return found[0].video, (found[0].frames.start, found[0].frames.stop), found.vectors

    assert best(5) == best(5) == ("cam1/a.mp4", runs[5], 2000)
    kept = VectorSet.of(store, None, "**")
    assert VectorSet.of(store, None, "**") is kept

    def change(what: Callable[[Store], object]) -> None:
        def work() -> None:
            with Store.open(store.path) as other:
                what(other)

        worker = _FORK.Process(target=work)
        worker.start()
        worker.join(60)
        assert worker.exitcode == 0

    change(lambda other: other["cam1/a.mp4"].vectors.add(matrix[2000:], runs[2000:], CLIP))
    assert best(2500) == ("cam1/a.mp4", runs[2500], 3000)
    change(lambda other: other.move("cam1/a.mp4", "b.mp4"))
    assert best(2500)[0] == "b.mp4"
    change(lambda other: other["b.mp4"].vectors.add(matrix[:1], [runs[2500]], "dino"))
    with pytest.raises(UsageError, match="several sources"):
        store.nearest(matrix[5])
    store["b.mp4"].vectors.remove("dino")
    # Matrices that are read often are kept, with the same answers.
    query = matrix[7]
    before = [(one.frames, one.score) for one in store.nearest(query, 9)]
    for _ in range(8):
        found = store.nearest(query, 9, names="b.mp4")
        assert [(one.frames, one.score) for one in found] == before
    change(lambda other: other.remove("b.mp4"))
    with pytest.raises(NotFoundError):
        store.nearest(query)


def test_refused_searches(store: Store, video: Video) -> None:
    with pytest.raises(NotFoundError, match="no vectors"):
        store.nearest([1.0, 2.0])
    video.vectors.add(drawn(5), range(5), CLIP)
    query = drawn(1)[0]
    refused: list[tuple[Any, int, str]] = [
        (query, 0, "at least 1, got 0"),
        (query[:3], 5, "24 numbers, got 3"),
        (query * np.nan, 5, "finite"),
        ("cam1/a.mp4", 5, "must be a vector"),
        (("cam1/a.mp4", "x"), 5, "frame must be"),
    ]
    for given, k, text in refused:
        with pytest.raises(UsageError, match=text):
            store.nearest(given, k)
    with pytest.raises(NotFoundError, match="no vector of clip"):
        store.nearest(("cam1/a.mp4", (50, 60)))
    with pytest.raises(NotFoundError):
        store.nearest(query, names="cam2/*")
    store.ingest(FOLDER / "portrait.mp4", "b.mp4")
    assert len(store.nearest(query, names="b.mp4")) == 0


def test_damaged_numbers_are_an_error(store: Store, video: Video) -> None:
    video.vectors.add(drawn(50), range(50), CLIP)
    (key,) = objects_of(store) - {video.original.object_key}
    path = store.parts.objects.path(key)
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    for position in (3, 20, 200, len(data) - 1):  # the head, the tables, the matrix
        changed = bytearray(data)
        changed[position] ^= 4
        path.write_bytes(changed)
        with Store.open(store.path) as other, pytest.raises(IntegrityError, match=key):
            other["cam1/a.mp4"].vectors.get()
    path.write_bytes(data[:-1])
    with Store.open(store.path) as other:
        with pytest.raises(IntegrityError, match=key):
            other.nearest(drawn(1)[0])
        found = {one.check: one.message for one in fsck.run(other.parts)}
        assert found.keys() == {"objects", "vectors"}
        assert "vectors of cam1/a.mp4" in found["objects"]
    path.unlink()
    with Store.open(store.path) as other, pytest.raises(IntegrityError, match="missing"):
        other["cam1/a.mp4"].vectors.get()

"""A store whose catalog is behind PgBouncer in transaction mode."""

from __future__ import annotations

import multiprocessing
import traceback
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest

from tests.support.pgbouncer import PgBouncer
from vfsd.api.store import Store

_ROUNDS = 2


def _read(store: Store, number: int, clip: Path) -> None:
    for at in range(_ROUNDS * 4):
        for video in store.values():
            assert len(video.read(frames=[(7 * at + number) % 60])) == 1
    store.tools.read_log.flush()
    assert len(list(store.catalog.reads())) > 0


def _ingest(store: Store, number: int, clip: Path) -> None:
    for at in range(_ROUNDS):
        video = store.ingest(clip, f"new/{number}-{at}.mp4")
        store.catalog.tag(video.info, "new")


def _retile(store: Store, number: int, clip: Path) -> None:
    video = store[f"cam/{number}.mp4"]
    for at in range(_ROUNDS):
        video.tiles.retile(f"uniform:1x{at + 2}", span=(0, 1), jobs=1)


def _work(home: Path, number: int, clip: Path, answers: SimpleQueue[str]) -> None:
    try:
        with Store.open(home, staleness=0.1, threads=1) as store:
            (_read, _ingest, _retile)[number % 3](store, number, clip)
        answers.put("")
    except BaseException:
        answers.put(traceback.format_exc())


@pytest.mark.thorough
def test_six_processes_work_behind_a_pooler(
    pgbouncer: PgBouncer, own_database: str, tmp_path: Path, wide_clip: Path
) -> None:
    home = tmp_path / "store"
    with Store.create(home, catalog_url=pgbouncer.url_of(own_database)) as store:
        for number in range(6):
            store.ingest(wide_clip, f"cam/{number}.mp4")
    spawn = multiprocessing.get_context("spawn")
    answers: SimpleQueue[str] = spawn.SimpleQueue()
    processes = [
        spawn.Process(target=_work, args=(home, number, wide_clip, answers)) for number in range(6)
    ]
    for one in processes:
        one.start()
    assert [answers.get() for _ in processes] == [""] * 6
    for one in processes:
        one.join(60)
    with Store.open(home) as store:
        assert len(store.catalog.find(tags={"new"})) == 2 * _ROUNDS
        for number in (2, 5):
            segments = store.catalog.segments(store[f"cam/{number}.mp4"].info)
            assert [str(one.layout) for one in segments if one.first_frame == 0] != []

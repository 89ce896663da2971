"""A catalog on PostgreSQL: statements of each operation, and publications with many writers.

It starts a PostgreSQL server of its own, with fsync.  A publication is the transaction that adds a
segment of one tile.  At the same time, threads of another process note reads.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from benchmarks.common import arguments, finish, table
from sample_videos import Encoding, Scene, write
from tests.support.catalog_rows import add_segments, add_video
from tests.support.postgresql import PostgresqlServer, postgresql_programs
from vfsd.api.store import Store
from vfsd.catalog import Catalog
from vfsd.core.model import LoggedRead, LogicalVideo
from vfsd.mount import control
from vfsd.tiling import Rect

BOUNDS = {"store[name]": 2, "first video[i]": 4, "next video[j]": 0, "region, known page": 0}
IDLE_BOUND = 1.0
WRITERS = (1, 4, 16)
NOTING_THREADS = 200
_START_SECONDS = 300
LEFT_OUT = "PostgreSQL is not installed"

Row = tuple[str, int, int, str]


def main() -> None:
    parser = arguments(__doc__, runs=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run with writers")
    parser.add_argument("--no-mount", action="store_true", help="leave out the idle mount")
    options = parser.parse_args()
    programs = postgresql_programs()
    if programs is None:
        print(LEFT_OUT)
        finish(options, "catalog_server", {}, passed=True, left_out=[LEFT_OUT])
        return
    server = PostgresqlServer(programs, options="-c max_connections=300")
    try:
        figures, missed = _measure(server, options.seconds, with_mount=not options.no_mount)
    finally:
        server.close()
    finish(options, "catalog_server", figures, passed=not missed)


def _measure(
    server: PostgresqlServer, seconds: float, *, with_mount: bool
) -> tuple[dict[str, Any], list[str]]:
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "store"
        url = server.new_database()
        rows = operations(home, Path(folder), url)
        for name, statements, _, bound in rows:
            if bound and statements > int(bound):
                missed.append(name)
        print(table(("operation", "statements", "transactions", "bound"), rows))
        figures: dict[str, Any] = {name: statements for name, statements, *_ in rows}
        if with_mount:
            rate = idle_mount(server, url, home, Path(folder) / "mnt", seconds)
            print(f"\nidle mount: {rate:.2f} statements a second, bound {IDLE_BOUND:g}")
            figures["idle mount"] = rate
            if rate > IDLE_BOUND:
                missed.append("idle mount")
    lines = []
    for writers in WRITERS:
        alone, _ = publications(server, writers, seconds, noting=0)
        noisy, notes = publications(server, writers, seconds, noting=NOTING_THREADS)
        lines.append((writers, alone, noisy, notes))
        figures[f"{writers} writers"] = {"alone": alone, "with notes": noisy, "notes": notes}
    headings = ("writers", "publications/s", "the same next to notes", "notes/s")
    print("\n" + table(headings, lines))
    for name in missed:
        print(f"missed its bound: {name}")
    return figures, missed


def operations(home: Path, folder: Path, url: str) -> list[Row]:
    """(operation, statements, transactions, bound) of each operation of a process."""
    clip = folder / "clip.mp4"
    scene = Scene(640, 360, frames=3000, rate=Fraction(25), density=0.03, noise=0.0, seed=3)
    write(scene, Encoding("h264", gop=25, bframes=0, preset="ultrafast"), clip)
    with Store.create(home, catalog_url=url) as store:
        store.ingest(clip, "cam1/a.mp4").tiles.retile("uniform:2x2", span=(0, 4))
    rows: list[Row] = []
    part = (10, 10, 200, 200)
    with _counted() as counts:

        def count(name: str, work: Callable[[], Any]) -> Any:
            counts[:] = [0, 0]
            result = work()
            rows.append((name, counts[0], counts[1], str(BOUNDS.get(name, ""))))
            return result

        # A long staleness leaves out the one statement a second that asks for changes.
        with count("Store.open", lambda: Store.open(home, staleness=600)) as store:
            video = count("store[name]", lambda: store["cam1/a.mp4"])
            count("first video[i]", lambda: video[3])
            count("next video[j]", lambda: video[40])
            count("region, known page", lambda: video.read(span=(0, 2), region=part))
            count("clip elsewhere", lambda: video.read(span=(110, 111), region=part))
            count("add a detection", lambda: video.labels.add([(3, "car", part)], "benchmark"))
            count("store[name] after it", lambda: store["cam1/a.mp4"])
            count("publish a segment", lambda: _publish_another(store.catalog, video.info))
            count("notes of all these reads", store.tools.read_log.flush)
    return rows


def _publish_another(catalog: Catalog, video: LogicalVideo) -> None:
    key = "f" * 64
    with catalog.writing() as change:
        (*_, like) = change.segments.active(video.original.id)
        change.objects.record(key, 10, now_ns=4)
        frames = range(like.end_frame, like.end_frame + len(like.frames))
        change.segments.publish(
            replace(like, first_frame=frames.start, end_frame=frames.stop, object_key=key)
        )


@contextmanager
def _counted() -> Iterator[list[int]]:
    """Count the statements and transactions of this process."""
    counts = [0, 0]

    def note_statement(*_: object) -> None:
        counts[0] += 1

    def note_transaction(*_: object) -> None:
        counts[1] += 1

    event.listen(Engine, "before_cursor_execute", note_statement)
    event.listen(Engine, "begin", note_transaction)
    yield counts
    event.remove(Engine, "before_cursor_execute", note_statement)
    event.remove(Engine, "begin", note_transaction)


def idle_mount(
    server: PostgresqlServer, url: str, home: Path, place: Path, seconds: float
) -> float:
    """Statements a second of a mount without users, by the server's own count."""
    place.mkdir()
    control.mount(home, place, ())
    try:
        with Store.open(home, read_only=True, staleness=0) as store:
            while not store["cam1/a.mp4"].original.verified:
                time.sleep(0.5)
        time.sleep(3)
        server.statements(url)
        time.sleep(4 * seconds)
        return sum(server.statements(url).values()) / (4 * seconds)
    finally:
        control.unmount(place)


def publications(
    server: PostgresqlServer, writers: int, seconds: float, *, noting: int
) -> tuple[float, float]:
    """(publications, notes) a second of that many processes, while `noting` threads note reads."""
    url = server.new_database()
    with Catalog.create(url) as catalog, catalog.writing() as change:
        for number in range(writers):
            add_video(change, f"{number}.mp4", key=f"{number:064x}")
    fork = multiprocessing.get_context("fork")
    made, noted = fork.Value("q", 0), fork.Value("q", 0)
    start = fork.Barrier(writers + bool(noting), timeout=_START_SECONDS)
    processes = [
        fork.Process(target=_publish, args=(url, number, start, seconds, made))
        for number in range(writers)
    ]
    if noting:
        processes.append(fork.Process(target=_note, args=(url, noting, start, seconds, noted)))
    for one in processes:
        one.start()
    for one in processes:
        one.join()
    return made.value / seconds, noted.value / seconds


def _publish(
    url: str, number: int, start: Barrier, seconds: float, made: Synchronized[int]
) -> None:
    with Catalog.open(url) as catalog:
        video = catalog.video(f"{number}.mp4")
        with catalog.writing() as change:
            (segment,) = add_segments(change, video, 1)

        def publish(at: int) -> None:
            key = f"{number:032x}{at + 1:032x}"
            with catalog.writing() as change:
                change.objects.record(key, 10, now_ns=4)
                change.segments.publish(
                    replace(segment, first_frame=at, end_frame=at + 1, object_key=key)
                )

        publish(1)  # compiles the statements
        start.wait()
        end, done = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            publish(done + 2)
            done += 1
        with made.get_lock():
            made.value += done


def _note(url: str, threads: int, start: Barrier, seconds: float, noted: Synchronized[int]) -> None:
    """As 200 processes that write their notes once a second."""
    with Catalog.open(url) as catalog:
        video = catalog.video("0.mp4")
        read = LoggedRead(
            0, video.id, time.time_ns(), "api", 0, 9, 9, Rect(0, 0, 9, 9), (9, 9), None,
            81, 81, 0.1, 0.1, 0.1, 0, 0, 9,
        )  # fmt: skip
        count = [0] * threads
        catalog.note_reads([(video.digest, read)], keep=100_000)
        start.wait()
        end = time.monotonic() + seconds

        def work(which: int) -> None:
            while time.monotonic() < end:
                catalog.note_reads([(video.digest, read)] * 20, keep=100_000)
                count[which] += 20
                time.sleep(1)

        running = [threading.Thread(target=work, args=(which,)) for which in range(threads)]
        for one in running:
            one.start()
        for one in running:
            one.join()
        noted.value = sum(count)


if __name__ == "__main__":
    main()

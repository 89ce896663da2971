"""Rebuilding frame tables: only from the bytes that were stored, and without moving labels to
other frames."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sample_videos import FOLDER
from tests.support.missing_frame import FRAMES, make_clip
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.disk.store_layout import CATALOG
from vfsd.errors import IntegrityError
from vfsd.maintenance import fsck
from vfsd.maintenance.fsck.finding import Finding
from vfsd.write.frame_index import restore_original_file
from vfsd.write.ingest_file import SourceFile

SEEN = 100
"""The frame that is labelled, as packets count; by a full decode it is one less."""


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clip(tmp_path_factory.mktemp("holes") / "holes.mp4")


def sql(store: Store, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(store.path / CATALOG)) as raw, raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        raw.execute(statement, values)


def flip_page(store: Store, video: Video) -> None:
    with closing(sqlite3.connect(store.path / CATALOG)) as raw, raw:
        number = video.original.id
        query = "SELECT data FROM frame_pages WHERE physical_id = ? AND ordinal = 0"
        (page,) = raw.execute(query, (number,)).fetchone()
        page = page[:40] + bytes([page[40] ^ 4]) + page[41:]
        raw.execute("UPDATE frame_pages SET data = ? WHERE physical_id = ?", (page, number))


def label(video: Video, frame: int) -> None:
    video.labels.add_box(frame, "x", (0, 0, 9, 5), source="me")


def labelled(store: Store) -> list[tuple[int, int]]:
    """The frame number of each label, and the brightness of its frame."""
    video = store["a.mp4"]
    frames = [box.frame for box in video.labels.query()]
    # Tiles may be the cheaper source, and differ by a level or two.
    shown = [video.frames([frame], psnr=math.inf).data[0] for frame in frames]
    return [(frame, int(data[24, 32, 0])) for frame, data in zip(frames, shown, strict=True)]


def repaired(store: Store) -> list[Finding]:
    return [one for one in fsck.run(store.parts, repair=True) if one.check == "videos"]


# ------------------------------------------------------------------------------ indexed in place


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return Path(shutil.copy(FOLDER / "portrait.mp4", tmp_path / "mine.mp4"))


def rot(path: Path) -> None:
    found = path.stat()
    data = bytearray(path.read_bytes())
    at = len(data) // 2
    data[at : at + 200] = bytes(200)
    path.write_bytes(data)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def become_another(path: Path) -> None:
    shutil.copyfile(FOLDER / "late-start.mp4", path)


@pytest.mark.parametrize("change", [rot, become_another])
def test_unknown_bytes_are_not_reindexed(
    store: Store, mine: Path, change: Callable[[Path], None]
) -> None:
    video = store.ingest(mine, "a.mp4", link=True)
    label(video, 5)
    good, before = mine.read_bytes(), mine.stat()
    with store.catalog.reading() as seen:
        sums = seen.integrity.checksums(video.original.place)
    flip_page(store, video)
    change(mine)
    assert [one.repaired for one in repaired(store)] == [False]
    with pytest.raises(IntegrityError):
        restore_original_file(store.parts, SourceFile(mine, "a.mp4", before.st_size))
    with store.catalog.reading() as seen:
        assert seen.integrity.checksums(video.original.place) == sums
    assert store["a.mp4"].info == video.info

    mine.write_bytes(good)
    os.utime(mine, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [one.repaired for one in repaired(store)] == [True]
    assert store["a.mp4"].info == video.info
    assert len(store["a.mp4"].read()) == len(video)
    assert [box.frame for box in store["a.mp4"].labels.query()] == [5]


@pytest.mark.parametrize("what", ["link", "unknown"])
def test_unconfirmed_linked_file_is_not_reindexed(store: Store, mine: Path, what: str) -> None:
    video = store.ingest(mine, "a.mp4", link=True)
    if what == "link":
        mine.rename(mine.with_name("moved.mp4"))
        mine.symlink_to("moved.mp4")
        flip_page(store, video)
    else:  # nothing records its expected bytes
        sql(store, "DELETE FROM videos")
        sql(store, "DELETE FROM block_sums")
    assert [one.repaired for one in repaired(store)] == [False]
    with store.catalog.reading() as seen:
        assert (seen.integrity.checksums(video.original.place) is None) == (what == "unknown")


# ------------------------------------------------------------------------------------ labels


SENSELESS = "UPDATE physical_videos SET access = 'axtent'"
OF_ANOTHER = "UPDATE physical_videos SET object_key = 'x' || substr(object_key, 2)"
LOST = "DELETE FROM physical_videos"


@pytest.mark.parametrize(
    ("is_verified", "statement"),
    one_in(
        3,
        [
            (True, SENSELESS),
            (True, OF_ANOTHER),
            (True, LOST),
            (False, SENSELESS),  # packets were counted then
        ],
    ),
)
def test_labels_keep_their_frames_when_a_table_is_lost(
    store: Store, clip: Path, is_verified: bool, statement: str
) -> None:
    video = store.ingest(clip, "a.mp4")
    if is_verified:
        assert video.verify()
    label(video, SEEN - is_verified)
    sql(store, statement)
    assert [one.repaired for one in repaired(store)] == [True]
    store["a.mp4"].verify()
    ((frame, shade),) = labelled(store)
    assert frame == SEEN - 1
    assert shade == pytest.approx(2 * SEEN, abs=2)


def test_lost_table_without_labels_is_rebuilt_without_decoding(store: Store, clip: Path) -> None:
    store.ingest(clip, "a.mp4").verify()
    sql(store, "DELETE FROM physical_videos")
    assert [one.repaired for one in repaired(store)] == [True]
    assert not store["a.mp4"].original.verified


def test_table_repaired_concurrently_is_kept(
    store: Store, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_page(store, store.ingest(clip, "a.mp4"))
    examine = store.parts.examiner.examine_open

    def while_it_is_verified(fd: int, called: str, **more: Any) -> object:
        found = examine(fd, called, **more)
        monkeypatch.undo()
        with Store.open(store.path) as other:
            other["a.mp4"].verify()
            other["a.mp4"].tiles.retile("uniform:1x1")
            label(other["a.mp4"], SEEN - 1)
        return found

    monkeypatch.setattr(store.parts.examiner, "examine_open", while_it_is_verified)
    assert repaired(store) == []
    video = store["a.mp4"]
    assert (len(video), video.original.verified) == (FRAMES - 1, True)
    assert store.catalog.segments(video.info)
    ((_, shade),) = labelled(store)
    assert shade == pytest.approx(2 * SEEN, abs=2)

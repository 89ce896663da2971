"""Rows that vfsd never writes: `vfsd fsck` reports them, and continues with the next check.

Names that do not form a tree: findings and repairs of `vfsd fsck`.
"""

from __future__ import annotations

import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_videos import FOLDER
from tests.support.audio_clips import make_talking
from tests.support.fs_driver import Driver
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.catalog import ROOT
from vfsd.core.model import DirectoryEntry, Node
from vfsd.errors import IntegrityError
from vfsd.maintenance import fsck
from vfsd.maintenance.backup import back_up
from vfsd.maintenance.fsck.namespace import plan_tree_repair
from vfsd.mount.fs import Filesystem
from vfsd.mount.fs.unlinked_files import recover

HUGE = 1 << 62


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a row in each of the tables below."""
    path = tmp_path_factory.mktemp("rows") / "store"
    with new_store(path) as store:
        video = store.ingest(FOLDER / "traffic.mp4", "cam/a.mp4")
        video.tiles.retile("uniform:2x2")
        video.budget.pin()
        video.policy.hold("case 17")
        video.policy.set("original=keep")
    return path


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a video that has audio."""
    place = tmp_path_factory.mktemp("talking")
    with new_store(place / "store") as store:
        store.ingest(make_talking(place / "talking.mp4", "aac", frames=25), "a.mp4")
    return place / "store"


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


def corrupt(root: Path, table: str, column: str, value: object) -> None:
    """Change a value in the last row of a table."""
    with closing(sqlite3.connect(root / "catalog.sqlite3")) as raw, raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        last = f"rowid = (SELECT max(rowid) FROM {table})"
        raw.execute(f"UPDATE {table} SET {column} = ? WHERE {last}", (value,))
    raw.close()


WRONG_TYPES = [
    ("nodes", "mode", b"\xff\x00"),
    ("nodes", "target", HUGE),
    ("videos", "metadata", b"\xff\x00"),
    ("physical_videos", "media", "{"),
    ("segments", "first_frame", "x"),
    ("segments", "object_key", b"\xff\x00"),
    ("segments", "layout", b"\xff\x00"),
    ("pins", "first_frame", "x"),
    ("sounds", "configuration", -1),
    ("sounds", "time_base_den", b"\xff\x00"),
    ("block_sums", "link_path", HUGE),
    ("block_sums", "size", "x"),
    ("block_sums", "sums", HUGE),
]
"""Values that SQLite stores in any column, and Python cannot handle."""

WRONG_VALUES = [
    ("nodes", "mode", -1, "nodes"),
    ("nodes", "state", "lost", "nodes"),
    ("physical_videos", "role", "spare", "physical_videos"),
    ("pins", "role", "spare", "pins"),
    ("segments", "layout", "round", "segments"),
    ("sounds", "time_base_den", 0, "sounds"),
    ("physical_videos", "video_id", -1, "video -1 does not exist"),
]
"""Values of the right type."""


@pytest.mark.parametrize(("table", "column", "value"), one_in(4, WRONG_TYPES))
def test_values_of_another_type(place: Path, table: str, column: str, value: object) -> None:
    corrupt(place, table, column, value)
    with Store.open(place) as store:
        found = fsck.run(store.parts)
        told = [one.message for one in found if one.check == "catalog"]
        assert any(
            f" of {table} has a value of the wrong type in {column}" in message for message in told
        )
        fsck.run(store.parts, repair=True)


@pytest.mark.parametrize(("table", "column", "value", "told"), WRONG_VALUES)
def test_implausible_values(place: Path, table: str, column: str, value: object, told: str) -> None:
    corrupt(place, table, column, value)
    with Store.open(place) as store:
        found = fsck.run(store.parts)
        assert any(told in one.message for one in found), found
        fsck.run(store.parts, repair=True)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    one_in(
        3,
        [
            ("frame_pages", "data", 5),
            ("frame_pages", "data", "xyz"),
            ("frame_pages", "packets", "abc"),
            ("sound_pages", "data", 7),
            ("sounds", "time_base_den", 0),
        ],
    ),
)
def test_invalid_rows_of_a_video_do_not_stop_checks_of_others(
    tmp_path: Path, table: str, column: str, value: object
) -> None:
    place = tmp_path / "store"
    with new_store(place) as store:
        store.ingest(make_talking(tmp_path / "talking.mp4", "aac", frames=25), "a.mp4")
    corrupt(place, table, column, value)
    with Store.open(place) as store:
        last = store.ingest(FOLDER / "traffic.mp4", "z.mp4").original
        with store.catalog.writing() as change:
            change.videos.put_pages(last.id, [])
        told = [one.message for one in fsck.run(store.parts) if one.check == "videos"]
        assert [message.split()[0] for message in told] == ["'a.mp4'", "'z.mp4'"]
        back_up(store.parts, tmp_path / "backup")
        fsck.run(store.parts, repair=True)
        assert len(store["z.mp4"].read()) == 120
    with Store.open(place) as store:
        assert fsck.run(store.parts) == []
        assert store["a.mp4"].read(frames=[3]).index.tolist() == [3]


NO_TEXT = "CAST(x'ff00' AS TEXT)"


@pytest.mark.parametrize(
    ("change", "is_mended"),
    one_in(
        3,
        [
            (
                "nodes SET object_key = 'g' || substr(object_key, 2) WHERE object_key IS NOT NULL",
                False,
            ),
            (f"nodes SET reason = {NO_TEXT} WHERE object_key IS NOT NULL", False),
            ("frame_pages SET data = CAST(data AS TEXT)", True),
            ("sound_pages SET data = CAST(data AS TEXT)", True),
            ("physical_videos SET extradata = CAST(extradata AS TEXT)", True),
            ("sounds SET configuration = CAST(configuration AS TEXT)", True),
            (f"physical_videos SET codec = {NO_TEXT}", True),
            (f"physical_videos SET media = {NO_TEXT}", True),
            (f"sounds SET codec = {NO_TEXT}", True),
        ],
    ),
)
def test_unreadable_rows_of_a_video_do_not_stop_repairs_of_others(
    talking: Path, tmp_path: Path, change: str, is_mended: bool
) -> None:
    place = Path(shutil.copytree(talking, tmp_path / "store"))
    with closing(sqlite3.connect(place / "catalog.sqlite3")) as raw, raw:
        raw.execute(f"UPDATE {change}")
    with Store.open(place) as store:
        last = store.ingest(FOLDER / "portrait.mp4", "z.mp4").original
        with store.catalog.writing() as change_pages:
            change_pages.videos.put_pages(last.id, [])
        found = [one for one in fsck.run(store.parts, repair=True) if one.check == "videos"]
        assert [one.repaired for one in found if "z.mp4" in one.message] == [True], found
        assert all(one.repaired for one in found) == is_mended
        assert len(store["z.mp4"].frames(range(3))) == 3
        if is_mended:
            assert len(store["a.mp4"].frames(range(3))) == 3
            assert store.catalog.sound(store["a.mp4"].original) is not None


@pytest.mark.parametrize("table", ["frame_pages", "sound_pages"])
def test_backup_with_pages_stored_as_text(talking: Path, tmp_path: Path, table: str) -> None:
    place = Path(shutil.copytree(talking, tmp_path / "store"))
    with closing(sqlite3.connect(place / "catalog.sqlite3")) as raw, raw:
        raw.execute(f"UPDATE {table} SET data = CAST(data AS TEXT)")
    with Store.open(place) as store:
        back_up(store.parts, tmp_path / "backup")
    with Store.open(tmp_path / "backup") as store:
        assert len(store["a.mp4"].frames(range(3))) == 3


def test_possible_checks_are_run(place: Path) -> None:
    corrupt(place, "nodes", "state", "lost")
    with Store.open(place) as store:
        with store.catalog.reading() as seen:
            packs = {segment.object_key for segment in seen.segments.all()}
            (key,) = seen.objects.sizes().keys() - packs
        store.parts.objects.path(key).unlink()
        found = fsck.run(store.parts, repair=True)
    assert any(one.check == "objects" and "is missing" in one.message for one in found)
    unable = [one for one in found if "cannot continue" in one.message]
    assert "links" in {one.check for one in unable}
    assert not any(one.repaired for one in unable)


def test_error_names_the_invalid_row(place: Path) -> None:
    corrupt(place, "nodes", "state", "lost")
    with Store.open(place) as store:
        with closing(sqlite3.connect(place / "catalog.sqlite3")) as raw, raw:
            (ino,) = raw.execute("SELECT max(ino) FROM nodes").fetchone()
        raw.close()
        with pytest.raises(IntegrityError, match=f"row {ino} of nodes"):
            store.node("cam/a.mp4")


def test_text_that_cannot_be_decoded(place: Path) -> None:
    with closing(sqlite3.connect(place / "catalog.sqlite3")) as raw, raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        raw.execute("UPDATE pins SET role = CAST(x'ff00' AS TEXT)")
    raw.close()
    with Store.open(place) as store:
        found = fsck.run(store.parts)
    (told,) = (one.message for one in found if one.check == "budgets")
    assert "text that cannot be decoded" in told


def test_needed_bytes_with_an_invalid_row_are_not_garbage(place: Path) -> None:
    with Store.open(place) as store:
        path = store.parts.originals.path_of(store["cam/a.mp4"].original)
    with closing(sqlite3.connect(place / "catalog.sqlite3")) as raw, raw:
        raw.execute(
            "UPDATE objects SET key = 'lost' WHERE key = ?", (path.parent.name + path.name,)
        )
    raw.close()
    with Store.open(place) as store:
        assert not all(one.repaired for one in fsck.run(store.parts, repair=True))
        assert fsck.collect(store.parts).objects == ["lost"]
    assert path.exists()


def test_private_bytes_with_an_invalid_row_are_kept(place: Path) -> None:
    with Store.open(place) as store:
        it = Driver(Filesystem(store.parts))
        it.write("/notes.txt", b"mine")
        it.fs.settle()
        it.fs.close()
        path = store.parts.directory.spool_file(store.node("notes.txt").ino)
    with closing(sqlite3.connect(place / "catalog.sqlite3")) as raw, raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        raw.execute("UPDATE nodes SET state = 'plaiN' WHERE state = 'plain'")
    with Store.open(place) as store:
        fsck.run(store.parts, repair=True)
        assert fsck.collect(store.parts).files == []
        assert recover(store.parts).stray == 0
    assert path.read_bytes() == b"mine"


# --------------------------------------------------------------------------------------------------
# Names that do not form a tree: findings and repairs of `vfsd fsck`


CLIP = FOLDER / "portrait.mp4"
LOST = fsck.LOST_AND_FOUND


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path / "store") as opened:
        yield opened


def sql(store: Store, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(store.path / "catalog.sqlite3")) as raw, raw:
        raw.execute(statement, values)
    raw.close()


def forget_name(store: Store, name: str) -> None:
    sql(store, "DELETE FROM entries WHERE name = ?", name.encode())


def repaired(store: Store) -> list[str]:
    """The findings of a repair; checks that a second run finds nothing."""
    wrong = fsck.run(store.parts)
    assert not any(finding.repaired for finding in wrong)
    found = fsck.run(store.parts, repair=True)
    assert {(one.check, one.repaired) for one in found} == {("links", True)}
    assert [one.message for one in found] == [one.message for one in wrong]
    assert fsck.run(store.parts) == []
    return [one.message for one in found]


def paths(store: Store) -> list[str]:
    with store.catalog.reading() as seen:
        return [path for path, _ in seen.tree.walk()]


def test_entries_of_a_lost_directory_stay_in_it(store: Store) -> None:
    for name in ("dir/sub/a.mp4", "dir/b.mp4"):
        store.ingest(CLIP, name)
    number = store.node("dir").ino
    forget_name(store, "dir")
    assert f"inode {number} cannot be reached by any name" in repaired(store)
    top = f"{LOST}/#{number}"
    assert paths(store) == [
        LOST,
        top,
        f"{top}/b.mp4",
        f"{top}/sub",
        f"{top}/sub/a.mp4",
    ]
    store.move(f"{top}/sub", "sub")
    store.remove(f"{top}/b.mp4")
    assert fsck.run(store.parts) == []
    assert list(store) == ["sub/a.mp4"]


def test_recovered_files_avoid_existing_names(store: Store) -> None:
    store.ingest(CLIP, LOST)
    number = store.ingest(CLIP, "a.mp4").info.ino
    forget_name(store, "a.mp4")
    repaired(store)
    store.move(f"{LOST}.1/#{number}", "a.mp4")
    store.ingest(CLIP, f"{LOST}.1/#{number}")
    forget_name(store, "a.mp4")
    repaired(store)
    assert list(store) == [LOST, f"{LOST}.1/#{number}", f"{LOST}.1/#{number}.1"]


def test_unreachable_directory_cycle(store: Store) -> None:
    store.ingest(CLIP, "a/b/c.mp4")
    a, b = store.node("a").ino, store.node("a/b").ino
    sql(store, "UPDATE entries SET parent = ? WHERE ino = ?", b, a)
    assert store.catalog.names(store.catalog.unverified()[0]) == []
    assert repaired(store) == [
        f"directory {a} must have one name, got another: 'a' in directory {b}",
        f"inode {a} cannot be reached by any name",
        f"link count of inode {ROOT} must be 2, got 3",
    ]
    assert list(store) == [f"{LOST}/#{a}/b/c.mp4"]


def test_directory_in_itself_and_elsewhere(store: Store) -> None:
    video = store.ingest(CLIP, "a/b/c.mp4")
    a, b = store.node("a").ino, store.node("a/b").ino
    sql(store, "INSERT INTO entries (parent, name, ino) VALUES (?, ?, ?)", b, b"again", a)
    assert paths(store) == ["a", "a/b", "a/b/again", "a/b/c.mp4"]
    assert store.catalog.names(video.info) == ["a/b/c.mp4"]
    assert repaired(store) == [
        f"directory {a} must have one name, got another: 'again' in directory {b}",
    ]
    assert paths(store) == ["a", "a/b", "a/b/c.mp4"]


def test_directory_with_two_parents(store: Store) -> None:
    store.ingest(CLIP, "a/c.mp4")
    with store.catalog.writing() as change:
        for name in ("x", "y"):
            change.tree.create(ROOT, name, stat.S_IFDIR | 0o755, uid=0, gid=0, now_ns=1)
    a, x, y = (store.node(name).ino for name in ("a", "x", "y"))
    sql(store, "UPDATE entries SET parent = ? WHERE ino = ?", x, a)
    sql(store, "INSERT INTO entries (parent, name, ino) VALUES (?, ?, ?)", y, b"a", a)
    assert any("must have one name" in message for message in repaired(store))
    assert len(list(store)) == 1


def test_name_below_a_file(store: Store) -> None:
    file = store.ingest(CLIP, "file").info.ino
    number = store.ingest(CLIP, "a.mp4").info.ino
    sql(store, "UPDATE entries SET parent = ? WHERE ino = ?", file, number)
    assert repaired(store) == [
        f"'a.mp4' leads to inode {number} from inode {file}, which must be a directory",
        f"inode {number} cannot be reached by any name",
    ]
    assert list(store) == ["file", f"{LOST}/#{number}"]


def test_dangling_name(store: Store) -> None:
    number = store.ingest(CLIP, "a.mp4").info.ino
    sql(store, "INSERT INTO entries (parent, name, ino) VALUES (?, ?, ?)", ROOT, b"b.mp4", 4711)
    assert repaired(store) == [
        f"'b.mp4' in directory {ROOT} leads to inode 4711, which does not exist"
    ]
    sql(store, "UPDATE entries SET ino = ?", 4711)
    assert repaired(store) == [
        f"'a.mp4' in directory {ROOT} leads to inode 4711, which does not exist",
        f"inode {number} cannot be reached by any name",
    ]
    assert list(store) == [f"{LOST}/#{number}"]


def node(ino: int, is_dir: bool) -> Node:
    kind = stat.S_IFDIR if is_dir else stat.S_IFREG
    return Node(ino, kind | 0o700, 0, 0, 0, 0, 0, 0, 0)


INODES = st.integers(1, 8)


@given(
    directories=st.sets(INODES),
    files=st.sets(INODES),
    names=st.sets(st.tuples(INODES, st.sampled_from([b"a", b"b"]), INODES), max_size=20),
    orphans=st.sets(st.integers(2, 8), max_size=2),
)
def test_repair_turns_arbitrary_names_into_a_tree(
    directories: set[int],
    files: set[int],
    names: set[tuple[int, bytes, int]],
    orphans: set[int],
) -> None:
    nodes = {ino: node(ino, is_dir=False) for ino in files}
    nodes |= {ino: node(ino, is_dir=True) for ino in {ROOT, *directories}}
    given = [DirectoryEntry(*one) for one in sorted(names)]
    repair = plan_tree_repair(nodes, given, orphans)
    gone = {*repair.outside_directories, *repair.dangling, *repair.extra}
    after = [name for name in given if name not in gone]
    after += [DirectoryEntry(ROOT, b"#%d" % ino, ino) for ino in repair.unreachable]
    again = plan_tree_repair(nodes, after, orphans)
    assert not (again.outside_directories)
    assert not (again.dangling)
    assert not (again.extra)
    assert not (again.unreachable)
    for (
        ino,
        links,
    ) in again.link_counts.items():  # the folder of recovered files counts its directories
        if ino != ROOT:
            assert links == repair.link_counts[ino]
    parents = {name.ino: name.parent for name in after if name.ino in nodes}
    for ino in nodes.keys() - orphans:
        for _ in nodes:
            ino = parents.get(ino, ino)
        assert ino == ROOT or ino in orphans

"""Names that make no tree: what `vfsd fsck` finds of them, and makes of them."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_videos import FOLDER
from tests.stores import new_store
from vfsd.api.store import Store
from vfsd.catalog import ROOT
from vfsd.core.model import DirectoryEntry, Node
from vfsd.maintenance import fsck
from vfsd.maintenance.fsck.namespace_repair import plan_tree_repair

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
    """What a repair has found, after which all is well."""
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


def test_what_lies_in_a_lost_directory_stays_there(store: Store) -> None:
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


def test_files_may_have_the_names_that_lost_ones_would_get(store: Store) -> None:
    store.ingest(CLIP, LOST)
    number = store.ingest(CLIP, "a.mp4").info.ino
    forget_name(store, "a.mp4")
    repaired(store)
    store.move(f"{LOST}.1/#{number}", "a.mp4")
    store.ingest(CLIP, f"{LOST}.1/#{number}")
    forget_name(store, "a.mp4")
    repaired(store)
    assert list(store) == [LOST, f"{LOST}.1/#{number}", f"{LOST}.1/#{number}.1"]


def test_a_directory_in_itself_that_nobody_can_reach(store: Store) -> None:
    store.ingest(CLIP, "a/b/c.mp4")
    a, b = store.node("a").ino, store.node("a/b").ino
    sql(store, "UPDATE entries SET parent = ? WHERE ino = ?", b, a)
    assert store.catalog.names(store.catalog.unverified()[0]) == []
    assert repaired(store) == [
        f"directory {a} has a name too many, 'a' in directory {b}",
        f"inode {a} cannot be reached by any name",
        f"inode {ROOT} counts 3 names and has 2",
    ]
    assert list(store) == [f"{LOST}/#{a}/b/c.mp4"]


def test_a_directory_in_itself_and_elsewhere(store: Store) -> None:
    video = store.ingest(CLIP, "a/b/c.mp4")
    a, b = store.node("a").ino, store.node("a/b").ino
    sql(store, "INSERT INTO entries (parent, name, ino) VALUES (?, ?, ?)", b, b"again", a)
    assert paths(store) == ["a", "a/b", "a/b/again", "a/b/c.mp4"]
    assert store.catalog.names(video.info) == ["a/b/c.mp4"]
    assert repaired(store) == [
        f"directory {a} has a name too many, 'again' in directory {b}",
    ]
    assert paths(store) == ["a", "a/b", "a/b/c.mp4"]


def test_a_directory_with_two_parents(store: Store) -> None:
    store.ingest(CLIP, "a/c.mp4")
    with store.catalog.writing() as change:
        for name in ("x", "y"):
            change.tree.create(ROOT, name, stat.S_IFDIR | 0o755, uid=0, gid=0, now_ns=1)
    a, x, y = (store.node(name).ino for name in ("a", "x", "y"))
    sql(store, "UPDATE entries SET parent = ? WHERE ino = ?", x, a)
    sql(store, "INSERT INTO entries (parent, name, ino) VALUES (?, ?, ?)", y, b"a", a)
    assert any("a name too many" in message for message in repaired(store))
    assert len(list(store)) == 1


def test_a_name_in_what_is_no_directory(store: Store) -> None:
    file = store.ingest(CLIP, "file").info.ino
    number = store.ingest(CLIP, "a.mp4").info.ino
    sql(store, "UPDATE entries SET parent = ? WHERE ino = ?", file, number)
    assert repaired(store) == [
        f"'a.mp4' leads to inode {number} from inode {file}, which must be a directory",
        f"inode {number} cannot be reached by any name",
    ]
    assert list(store) == ["file", f"{LOST}/#{number}"]


def test_a_name_that_leads_nowhere(store: Store) -> None:
    number = store.ingest(CLIP, "a.mp4").info.ino
    sql(store, "INSERT INTO entries (parent, name, ino) VALUES (?, ?, ?)", ROOT, b"b.mp4", 4711)
    assert repaired(store) == [
        f"'b.mp4' in directory {ROOT} leads to inode 4711, which is not there"
    ]
    sql(store, "UPDATE entries SET ino = ?", 4711)
    assert repaired(store) == [
        f"'a.mp4' in directory {ROOT} leads to inode 4711, which is not there",
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
def test_any_names_become_a_tree(
    directories: set[int],
    files: set[int],
    names: set[tuple[int, bytes, int]],
    orphans: set[int],
) -> None:
    nodes = {ino: node(ino, is_dir=False) for ino in files}
    nodes |= {ino: node(ino, is_dir=True) for ino in {ROOT, *directories}}
    given = [DirectoryEntry(*one) for one in sorted(names)]
    shape = plan_tree_repair(nodes, given, orphans)
    gone = {*shape.astray, *shape.nowhere, *shape.second}
    after = [name for name in given if name not in gone]
    after += [DirectoryEntry(ROOT, b"#%d" % ino, ino) for ino in shape.lost]
    again = plan_tree_repair(nodes, after, orphans)
    assert (again.astray, again.nowhere, again.second, again.lost) == ([], [], [], [])
    for ino, links in again.links.items():  # where what was lost is put counts the directories
        if ino != ROOT:
            assert links == shape.links[ino]
    parents = {name.ino: name.parent for name in after if name.ino in nodes}
    for ino in nodes.keys() - orphans:
        for _ in nodes:
            ino = parents.get(ino, ino)
        assert ino == ROOT or ino in orphans

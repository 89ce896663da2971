"""Names and inodes: existence, paths and link counts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.catalog_rows import add_file
from tests.support.selection import examples
from tests.support.stores import new_catalog
from vfsd.catalog import ROOT, Catalog
from vfsd.core.model import FileState
from vfsd.errors import ExistsError, NotFoundError, UsageError


def test_new_catalog_has_an_empty_root(catalog: Catalog) -> None:
    with catalog.reading() as seen:
        root = seen.tree.node(ROOT)
        assert (root.is_dir, root.nlink) == (True, 2)
        assert seen.tree.children(ROOT) == []


def test_names_need_not_be_text(catalog: Catalog) -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    with catalog.writing() as change:
        made = add_file(change, name)
        change.tree.create(ROOT, "l", 0o120777, uid=0, gid=0, now_ns=1, target=name)
    with catalog.reading() as seen:
        assert seen.tree.lookup(ROOT, name) == made
        assert seen.tree.paths_of(made.ino) == [name]
        assert seen.tree.resolve("l").target == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "n" * 256, "ä" * 128])
def test_invalid_names_are_refused(catalog: Catalog, name: str) -> None:
    with catalog.writing() as change:
        node = add_file(change, "a")
    with catalog.writing() as change:
        version = change.tree.version()
        with pytest.raises(UsageError, match="name"):
            change.tree.link(node.ino, ROOT, name, now_ns=1)
        assert change.tree.version() == version
    with pytest.raises(UsageError, match="name"), catalog.writing() as change:
        change.tree.create(ROOT, name, 0o100644, uid=0, gid=0, now_ns=1)
    with pytest.raises(UsageError, match="name"), catalog.writing() as change:
        change.tree.rename(ROOT, "a", ROOT, name, now_ns=1)
    with catalog.reading() as seen:
        assert [entry for entry, _ in seen.tree.children(ROOT)] == ["a"]


def test_hard_links_are_counted_and_found(catalog: Catalog) -> None:
    with catalog.writing() as change:
        node = add_file(change, "a/x")
        linked = change.tree.link(node.ino, ROOT, "y", now_ns=2)
        assert linked.nlink == 2
        assert change.tree.paths_of(node.ino) == ["a/x", "y"]
        assert change.tree.unlink(ROOT, "y", now_ns=3).nlink == 1
        with pytest.raises(ExistsError):
            change.tree.link(node.ino, change.tree.resolve("a").ino, "x", now_ns=4)


def test_tree_may_be_deeper_than_the_stack(catalog: Catalog) -> None:
    depth = 1200
    with catalog.writing() as change:
        parent = ROOT
        for _ in range(depth):
            made = change.tree.create(parent, "d", 0o40755, uid=0, gid=0, now_ns=1)
            parent = made.ino
        assert change.tree.paths_of(parent) == ["/".join("d" * depth)]
        walked = list(change.tree.walk())
    assert len(walked) == depth
    assert walked[-1][0] == "/".join("d" * depth)


def test_rename_over_a_file_returns_the_replaced_file(catalog: Catalog) -> None:
    with catalog.writing() as change:
        old, new = add_file(change, "old"), add_file(change, "new")
        replaced = change.tree.rename(ROOT, "old", ROOT, "new", now_ns=9)
        assert replaced is not None
        assert (replaced.ino, replaced.nlink) == (new.ino, 0)
        assert change.tree.resolve("new").ino == old.ino
        with pytest.raises(NotFoundError):
            change.tree.rename(ROOT, "old", ROOT, "other", now_ns=9)


def test_tree_on_postgresql(own_database: str) -> None:
    name = b"small\xff".decode("utf-8", "surrogateescape")
    with Catalog.create(own_database) as there, there.writing() as change:
        tree = change.tree
        before = tree.version()
        made = add_file(change, name)
        assert (tree.node(made.ino), tree.lookup(ROOT, name)) == (made, made)
        assert tree.version() == before + 1
        for value in (b"1", b"2"):
            tree.set_xattr(made.ino, b"user.a", value)
        assert tree.xattrs(made.ino) == {b"user.a": b"2"}
        assert tree.children_with_xattrs(ROOT) == {made.ino}
        tree.alter(made.ino, state=FileState.PLAIN, reason="not a video")
        assert tree.nodes([made.ino])[made.ino].reason == "not a video"
        other = tree.substitute(made.ino, generation=4)
        assert (name, other) in tree.children(ROOT)
        assert tree.unlink(ROOT, name, now_ns=5).nlink == 0
        tree.delete(other.ino)
        assert tree.lookup(ROOT, name) is None


def test_directories_count_their_subdirectories(catalog: Catalog) -> None:
    with catalog.writing() as change:
        add_file(change, "a/b/x")
        add_file(change, "c/y")
        tree = change.tree
        a, c = tree.resolve("a"), tree.resolve("c")
        assert (a.nlink, c.nlink, tree.node(ROOT).nlink) == (3, 2, 4)
        tree.rename(a.ino, "b", c.ino, "b", now_ns=2)
        assert (tree.node(a.ino).nlink, tree.node(c.ino).nlink) == (2, 3)
        tree.exchange(c.ino, "b", c.ino, "y", now_ns=3)
        assert tree.node(c.ino).nlink == 3
        tree.exchange(c.ino, "y", ROOT, "a", now_ns=3)
        assert (tree.node(c.ino).nlink, tree.node(ROOT).nlink) == (3, 4)


def test_orphan_is_restored_only_if_its_name_is_free(catalog: Catalog) -> None:
    with catalog.writing() as change:
        node = add_file(change, "x")
        change.tree.unlink(ROOT, "x", now_ns=2)
        change.tree.orphan(node.ino, now_ns=2, former=(ROOT, "x"))
        assert change.tree.orphans() == [(node.ino, (ROOT, "x"))]
        assert change.tree.adopt_orphan(node.ino, ROOT, "x", now_ns=3).nlink == 1
        assert change.tree.orphans() == []
        change.tree.unlink(ROOT, "x", now_ns=2)
        change.tree.orphan(node.ino, now_ns=2, former=(ROOT, "x"))
        change.tree.confirm_orphan(node.ino, ROOT, "y")  # an earlier name of the orphan
        assert change.tree.orphans() == [(node.ino, (ROOT, "x"))]
        change.tree.confirm_orphan(node.ino, ROOT, "x")
        assert change.tree.orphans() == [(node.ino, None)]
        change.tree.delete(node.ino)
        assert change.tree.orphans() == []


def test_attributes_are_bytes_and_removed_with_their_file(catalog: Catalog) -> None:
    with catalog.writing() as change:
        node = add_file(change, "x", state=FileState.PLAIN)
        change.tree.set_xattr(node.ino, b"user.k", b"\0\xff")
        change.tree.set_xattr(node.ino, b"user.k", b"v")
        assert change.tree.xattrs(node.ino) == {b"user.k": b"v"}
        assert change.tree.remove_xattr(node.ino, b"user.k")
        assert not change.tree.remove_xattr(node.ino, b"user.k")
        change.tree.set_xattr(node.ino, b"user.k", b"v")
        change.tree.unlink(ROOT, "x", now_ns=2)
        change.tree.delete(node.ino)
        assert change.tree.xattrs(node.ino) == {}


def test_failed_change_leaves_nothing(catalog: Catalog) -> None:
    def fail() -> None:
        with catalog.writing() as change:
            add_file(change, "a/b")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with catalog.reading() as seen:
        assert seen.tree.children(ROOT) == []


NAMES = st.sampled_from("abcd")


class TreeMachine(RuleBasedStateMachine):
    """Random changes, compared with a dictionary from path to inode number."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.catalog = new_catalog(Path(self.folder.name) / "c.sqlite3")
        self.model: dict[str, int] = {}

    def teardown(self) -> None:
        self.catalog.close()
        self.folder.cleanup()

    @rule(name=NAMES)
    def create(self, name: str) -> None:
        with self.catalog.writing() as change:
            if name in self.model:
                with pytest.raises(ExistsError):
                    add_file(change, name)
            else:
                self.model[name] = add_file(change, name).ino

    @rule(name=NAMES)
    def unlink(self, name: str) -> None:
        with self.catalog.writing() as change:
            if name not in self.model:
                with pytest.raises(NotFoundError):
                    change.tree.unlink(ROOT, name, now_ns=1)
            else:
                ino = self.model.pop(name)
                left = change.tree.unlink(ROOT, name, now_ns=1)
                assert left.nlink == list(self.model.values()).count(ino)
                if not left.nlink:
                    change.tree.delete(ino)

    @rule(old=NAMES, new=NAMES)
    def rename(self, old: str, new: str) -> None:
        if old not in self.model or self.model[old] == self.model.get(new):
            return
        with self.catalog.writing() as change:
            replaced = change.tree.rename(ROOT, old, ROOT, new, now_ns=1)
            before = self.model.get(new)
            assert (replaced.ino if replaced else None) == before
            self.model[new] = self.model.pop(old)
            if replaced and not replaced.nlink:
                change.tree.delete(replaced.ino)

    @rule(old=NAMES, new=NAMES)
    def link(self, old: str, new: str) -> None:
        if old not in self.model or new in self.model:
            return
        with self.catalog.writing() as change:
            change.tree.link(self.model[old], ROOT, new, now_ns=1)
            self.model[new] = self.model[old]

    @invariant()
    def same_as_the_model(self) -> None:
        with self.catalog.reading() as seen:
            children = dict(seen.tree.children(ROOT))
            assert {name: node.ino for name, node in children.items()} == self.model
            for node in children.values():
                assert node.nlink == list(self.model.values()).count(node.ino)
            assert len(list(seen.tree.all_nodes())) == len(set(self.model.values())) + 1


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = settings(
    max_examples=examples(75), stateful_step_count=25, deadline=None
)

"""Targets that work on a store: names in its file system, and random changes of its catalog."""

from __future__ import annotations

import errno
import os
import random
import tempfile
from pathlib import Path
from types import TracebackType

from benchmarks.fuzzing.engine import Target
from sample_videos import FOLDER
from vfsd.api.store import Store
from vfsd.catalog import ROOT, Catalog
from vfsd.core.model import FileState
from vfsd.errors import ExistsError, NotFoundError, UsageError, VfsdError
from vfsd.mount.fs import Filesystem
from vfsd.mount.fs.posix import Caller
from vfsd.views import Views

_EXPECTED = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EINVAL,
        errno.ENODATA,
        errno.ENAMETOOLONG,
        errno.EROFS,
        errno.EOPNOTSUPP,
        errno.EILSEQ,
    )
)
_READ = 4096
_STEPS = 40
_NAMES = ("a", "b", "\udcff", "..x", "é")


class _Names:
    """A file system with one video, created once per process."""

    def __init__(self) -> None:
        self._fs: Filesystem | None = None
        self._caller: Caller | None = None

    def prepare(self) -> None:
        folder = Path(tempfile.mkdtemp())
        Store.create(folder / "store").close()
        store = Store.open(folder / "store")
        store.ingest(FOLDER / "portrait.mp4", "v.mp4")
        self._fs = Filesystem(store.parts, views=Views(store.parts, store.tools))
        self._caller = Caller(0, 0)

    def check(self, data: bytes) -> None:
        """Operations return only results of a file system, and a file's size equals its number
        of bytes."""
        assert self._fs is not None
        assert self._caller is not None
        path = "/v.mp4@/" + os.fsdecode(data).replace("\0", "")
        try:
            found = self._fs.getattr(path)
            self._fs.listxattr(path)
            if found.mode & 0o170000 == 0o040000:
                self._fs.listdir(path)
                return
            handle = self._fs.open(path, os.O_RDONLY, self._caller)
            try:
                assert len(self._fs.read(handle, _READ, 0)) == min(_READ, found.size)
                assert not self._fs.read(handle, _READ, found.size)
            finally:
                self._fs.release(handle)
        except (VfsdError, OSError) as error:
            if error.errno not in _EXPECTED:
                raise


def _names() -> list[bytes]:
    return [
        b"",
        b"info.json",
        b"frames/000003.png",
        b"frames/000001.npy",
        b"t=0-0.2.mp4",
        b"t=0-0.1,size=32x32.mkv",
        b"frames=0-3-2,roi=20x20+4+4.rgb",
        b"64x48s0e1.yuv",
        b"explain/t=0-1.mp4",
        b"layout/000000.png",
        b"layout.png",
        b"objects/car/000000-0.png",
        b"../../etc/passwd",
        b"./frames/../info.json",
    ]


# --------------------------------------------------------------------------------------- catalog


class _Model:
    """A catalog and a dictionary of its expected contents; the input selects the operations."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._folder = tempfile.TemporaryDirectory(prefix="fuzz-")
        self._catalog = Catalog.create(f"sqlite:///{self._folder.name}/c.sqlite3")
        self._inos: dict[str, int] = {}
        self._xattrs: dict[int, dict[bytes, bytes]] = {}

    def __enter__(self) -> _Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._catalog.close()
        self._folder.cleanup()

    def step(self, number: int) -> None:
        steps = (self._create, self._unlink, self._rename, self._link, self._xattr, self._give_up)
        steps[number % len(steps)]()
        self._compare()

    def _name(self) -> str:
        return self._chance.choice(_NAMES)

    def _create(self) -> None:
        name = self._name()
        try:
            with self._catalog.writing() as change:
                node = change.tree.create(
                    ROOT, name, 0o100644, uid=0, gid=0, now_ns=1, state=FileState.SPOOLED
                )
        except ExistsError:
            assert name in self._inos
            return
        assert name not in self._inos
        self._inos[name], self._xattrs[node.ino] = node.ino, {}

    def _unlink(self) -> None:
        name = self._name()
        try:
            with self._catalog.writing() as change:
                left = change.tree.unlink(ROOT, name, now_ns=2)
                if not left.nlink:
                    change.tree.delete(left.ino)
        except NotFoundError:
            assert name not in self._inos
            return
        self._gone(self._inos.pop(name))

    def _rename(self) -> None:
        old, new = self._name(), self._name()
        if old not in self._inos or self._inos[old] == self._inos.get(new):
            return
        with self._catalog.writing() as change:
            replaced = change.tree.rename(ROOT, old, ROOT, new, now_ns=3)
            if replaced and not replaced.nlink:
                change.tree.delete(replaced.ino)
        before = self._inos.get(new)
        self._inos[new] = self._inos.pop(old)
        if before is not None:
            self._gone(before)

    def _link(self) -> None:
        old, new = self._name(), self._name()
        if old in self._inos and new not in self._inos:
            with self._catalog.writing() as change:
                change.tree.link(self._inos[old], ROOT, new, now_ns=4)
            self._inos[new] = self._inos[old]

    def _xattr(self) -> None:
        name = self._name()
        if name not in self._inos:
            return
        ino, key = self._inos[name], self._chance.choice((b"user.a", b"user.\xff"))
        mine = self._xattrs[ino]
        with self._catalog.writing() as change:
            if self._chance.random() < 0.5:
                mine[key] = self._chance.randbytes(self._chance.choice((0, 1, 300)))
                change.tree.set_xattr(ino, key, mine[key])
            else:
                assert change.tree.remove_xattr(ino, key) == (key in mine)
                mine.pop(key, None)

    def _give_up(self) -> None:
        """A failed transaction leaves nothing behind."""
        try:
            with self._catalog.writing() as change:
                change.tree.create(ROOT, "never", 0o040755, uid=0, gid=0, now_ns=5)
                raise UsageError("on purpose")
        except UsageError:
            return

    def _gone(self, ino: int) -> None:
        if ino not in self._inos.values():
            del self._xattrs[ino]

    def _compare(self) -> None:
        with self._catalog.reading() as seen:
            children = dict(seen.tree.children(ROOT))
            assert {name: node.ino for name, node in children.items()} == self._inos
            for node in children.values():
                assert node.nlink == list(self._inos.values()).count(node.ino)
                assert seen.tree.xattrs(node.ino) == self._xattrs[node.ino]
                assert set(seen.tree.paths_of(node.ino)) == {
                    name for name, ino in self._inos.items() if ino == node.ino
                }
            assert len(list(seen.tree.all_nodes())) == len(set(self._inos.values())) + 1
        assert not self._catalog.damage()


def check_catalog(data: bytes) -> None:
    with _Model(int.from_bytes(data[:8])) as model:
        for number in data[:_STEPS]:
            model.step(number)


_VIEWS = _Names()

TARGETS = (
    Target(
        "views",
        "names below a video's folder, through the file system",
        _VIEWS.check,
        _names,
        words=(
            b"/",
            b"..",
            b"@",
            b"@/",
            b"t=",
            b"frames=",
            b"roi=",
            b"size=",
            b"x",
            b"-",
            b",",
            b".mp4",
            b".png",
            b"explain/",
            b"objects/",
            b"layout/",
            b"999999999",
            b"\xff",
        ),
        seconds=60,
        prepare=_VIEWS.prepare,
    ),
    Target(
        "catalog",
        "random changes of names and attributes, against a model",
        check_catalog,
        lambda: [random.Random(number).randbytes(_STEPS) for number in range(50)],
        seconds=60,
    ),
)

"""Random steps here and on a real disk must have the same results and make the same tree."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, multiple, rule

from tests.support.fs_driver import Driver, failing
from tests.support.selection import examples
from vfsd.api.store import Store
from vfsd.mount.fs import RENAME_EXCHANGE, RENAME_NOREPLACE, Filesystem

_LIBC = ctypes.CDLL(None, use_errno=True)
_HERE = -100  # AT_FDCWD

NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
DATA = st.binary(max_size=40)
OFFSETS = st.integers(0, 5000)
MODES = st.sampled_from([os.O_RDONLY, os.O_WRONLY, os.O_RDWR])


class Disk:
    """A real directory with the same methods."""

    def __init__(self, root: str) -> None:
        self.root = root

    def at(self, path: str) -> str:
        return self.root + path

    def rename(self, old: str, new: str, flags: int) -> None:
        names = os.fsencode(self.at(old)), os.fsencode(self.at(new))
        if _LIBC.renameat2(_HERE, names[0], _HERE, names[1], flags) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def picture(self) -> dict[str, tuple[Any, ...]]:
        """All entries by path: type, link count and contents."""
        found: dict[str, tuple[Any, ...]] = {}
        groups: dict[int, list[str]] = {}

        def visit(path: str) -> None:
            for name in sorted(os.listdir(self.at(path))):
                full = f"{path}/{name}"
                at = os.lstat(self.at(full))
                inside: Any = None
                if stat.S_ISREG(at.st_mode):
                    inside = Path(self.at(full)).read_bytes()
                    groups.setdefault(at.st_ino, []).append(full)
                elif stat.S_ISLNK(at.st_mode):
                    inside = os.readlink(self.at(full))
                found[full] = (stat.S_IFMT(at.st_mode), at.st_nlink, inside)
                if stat.S_ISDIR(at.st_mode):
                    visit(full)

        visit("")
        return found | {f"same {names}": () for names in groups.values()}


def picture_of(it: Driver) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    groups: dict[int, list[str]] = {}

    def visit(path: str) -> None:
        for name in it.names(path or "/"):
            full = f"{path}/{name}"
            at = it.fs.getattr(full)
            inside: Any = None
            if stat.S_ISREG(at.mode):
                inside = it.read(full)
                assert at.size == len(inside)
                groups.setdefault(at.ino, []).append(full)
            elif stat.S_ISLNK(at.mode):
                inside = it.fs.readlink(full)
            found[full] = (stat.S_IFMT(at.mode), at.nlink, inside)
            if stat.S_ISDIR(at.mode):
                visit(full)

    visit("")
    return found | {f"same {names}": () for names in groups.values()}


class Comparison(RuleBasedStateMachine):
    """Every rule does the same operation on both sides."""

    template: Path
    handles = Bundle("handles")

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        os.mkdir(f"{self.place}/disk")
        self.disk = Disk(f"{self.place}/disk")
        self.store = Store.open(shutil.copytree(self.template, f"{self.place}/store"))
        self.it = Driver(Filesystem(self.store.parts))
        self.open: dict[int, int] = {}  #: our handle -> the disk's descriptor

    def teardown(self) -> None:
        for ours, real in self.open.items():
            self.it.close(ours)
            os.close(real)
        self.it.fs.settle()
        assert picture_of(self.it) == self.disk.picture()
        self.it.fs.delete_pending()
        self.check_nothing_is_left_over()
        self.it.fs.close()
        self.store.close()
        shutil.rmtree(self.place)

    def check_nothing_is_left_over(self) -> None:
        with self.store.catalog.reading() as seen:
            nodes = list(seen.tree.all_nodes())
            assert seen.tree.orphans() == []
        private = {str(node.ino) for node in nodes if node.is_file}
        assert {path.name for path in self.store.parts.directory.spool.iterdir()} == private

    def both(self, ours: Callable[[], Any], real: Callable[[], Any]) -> bool:
        """Do it on both sides, compare the trees, and return whether it succeeded."""
        answers = failing(ours), failing(real)
        assert answers[0] == answers[1]
        assert picture_of(self.it) == self.disk.picture()
        return not answers[0]

    @rule(path=PATHS, data=DATA)
    def write(self, path: str, data: bytes) -> None:
        self.both(
            lambda: self.it.write(path, data),
            lambda: Path(self.disk.at(path)).write_bytes(data),
        )

    @rule(path=PATHS)
    def mkdir(self, path: str) -> None:
        self.both(lambda: self.it.mkdir(path), lambda: os.mkdir(self.disk.at(path)))

    @rule(path=PATHS)
    def rmdir(self, path: str) -> None:
        self.both(lambda: self.it.fs.rmdir(path), lambda: os.rmdir(self.disk.at(path)))

    @rule(path=PATHS)
    def unlink(self, path: str) -> None:
        self.both(lambda: self.it.fs.unlink(path), lambda: os.unlink(self.disk.at(path)))

    @rule(old=PATHS, new=PATHS, flags=st.sampled_from([0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE]))
    def rename(self, old: str, new: str, flags: int) -> None:
        self.both(
            lambda: self.it.fs.rename(old, new, flags), lambda: self.disk.rename(old, new, flags)
        )

    @rule(path=PATHS, new=PATHS)
    def link(self, path: str, new: str) -> None:
        self.both(
            lambda: self.it.fs.link(path, new),
            lambda: os.link(self.disk.at(path), self.disk.at(new), follow_symlinks=False),
        )

    @rule(path=PATHS, length=OFFSETS)
    def truncate(self, path: str, length: int) -> None:
        self.both(
            lambda: self.it.truncate(path, length),
            lambda: os.truncate(self.disk.at(path), length),
        )

    @rule(target=handles, path=PATHS, mode=MODES, truncating=st.booleans())
    def open_file(self, path: str, mode: int, truncating: bool) -> Any:
        flags = mode | (os.O_TRUNC if truncating else 0)
        made: list[int] = []
        if not self.both(
            lambda: made.append(self.it.open(path, flags)),
            lambda: made.append(self.real_open(path, flags)),
        ):
            return multiple()
        self.open[made[0]] = made[1]
        return made[0]

    def real_open(self, path: str, flags: int) -> int:
        at = self.disk.at(path)
        if os.path.isdir(at):  # which may be opened for reading, as `opendir` does here
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        return os.open(at, flags)

    @rule(handle=handles, data=DATA, offset=OFFSETS)
    def write_open(self, handle: int, data: bytes, offset: int) -> None:
        if handle in self.open:
            self.both(
                lambda: self.it.fs.write(handle, data, offset),
                lambda: os.pwrite(self.open[handle], data, offset),
            )

    @rule(handle=handles, length=OFFSETS)
    def truncate_open(self, handle: int, length: int) -> None:
        if handle in self.open:
            ours = failing(self.it.fs.truncate, None, length, self.it.caller, handle)
            real = failing(os.ftruncate, self.open[handle], length)
            assert (ours == "") == (real == "")  # EBADF here, EINVAL there: the kernel tells first

    @rule(handle=handles)
    def look_at_open(self, handle: int) -> None:
        if handle not in self.open:
            return
        real = os.fstat(self.open[handle])
        ours = self.it.fs.getattr(None, handle)
        assert (ours.size, ours.nlink) == (real.st_size, real.st_nlink)
        with contextlib.suppress(OSError):
            content = os.pread(self.open[handle], 10_000, 0)
            assert self.it.fs.read(handle, 10_000, 0) == content

    @rule(handle=consumes(handles))
    def close_file(self, handle: int) -> None:
        os.close(self.open.pop(handle))
        self.it.close(handle)
        assert picture_of(self.it) == self.disk.picture()

    @rule()
    def settle(self) -> None:
        assert self.it.fs.settle()


def test_same_as_disk(empty_store: Path) -> None:
    Comparison.template = empty_store
    machine: Any = Comparison.TestCase
    machine.settings = settings(
        max_examples=examples(60),
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    machine("runTest").runTest()

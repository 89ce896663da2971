"""A driver for `Filesystem` that works with whole files and reports errors by name."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vfsd.catalog import ROOT
from vfsd.errors import VfsdError
from vfsd.mount.fs import Caller, EntryName, Filesystem, Place, ViewPath

ROOT_USER = Caller(0, 0)
SOMEBODY = Caller(1000, 1000)


class Driver:
    """Calls a `Filesystem` in the same way as programs use a directory."""

    def __init__(self, filesystem: Filesystem, caller: Caller = ROOT_USER) -> None:
        self.fs = filesystem
        self.caller = caller

    def write(self, path: str, data: bytes, mode: int = 0o644) -> int:
        """Write a file like a redirection of the shell; return its inode number."""
        handle = self.create(path, os.O_TRUNC, mode)
        self.fs.write(handle, data, 0)
        ino = self.fs.getattr(None, handle).ino
        self.close(handle)
        return ino

    def create(self, path: str, flags: int = 0, mode: int = 0o644) -> int:
        return self.fs.create(path, mode, os.O_RDWR | flags, self.caller)

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        return self.fs.open(path, flags, self.caller)

    def close(self, handle: int) -> None:
        self.fs.flush(handle)
        self.fs.release(handle)

    @contextmanager
    def opened(self, path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        handle = self.open(path, flags)
        try:
            yield handle
        finally:
            self.close(handle)

    def read(self, path: str) -> bytes:
        with self.opened(path) as handle:
            return self.read_open(handle)

    def read_open(self, handle: int) -> bytes:
        return self.fs.read(handle, self.fs.getattr(None, handle).size + 1, 0)

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        self.fs.mkdir(path, mode, self.caller)

    def names(self, path: str = "/") -> list[str]:
        return [entry.name for entry in self.fs.listdir(path)]

    def truncate(self, path: str, length: int) -> None:
        self.fs.truncate(path, length, self.caller)

    def state(self, path: str) -> str:
        """Read an attribute, which waits for the judgement."""
        return self.fs.getxattr(path, "user.vfsd.state").decode()


class ByInode(Filesystem):
    """A `Filesystem` that turns each path into an inode, or a name in a directory, first.

    That is how the kernel asks: it looks up the directories of a path one by one.
    """

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in _BY_INODE and name not in _BY_NAME:
            return found

        def called(*args: Any, **kwargs: Any) -> Any:
            places = list(args)
            for at in range(2 if name in ("link", "rename") else 1):
                is_name = name in _BY_NAME and (name, at) != ("link", 0)
                if isinstance(args[at], str):
                    places[at] = self._entry(args[at]) if is_name else self._found(args[at])
            return found(*places, **kwargs)

        return called

    def _entry(self, path: str) -> Place:
        """The last name of a path, in the directory that the other names lead to."""
        *folders, name = [part for part in path.split("/") if part] or [""]
        place: int | ViewPath = ROOT
        for folder in folders:
            place = self.lookup(EntryName(place, folder))[0]
        return EntryName(place, name) if name else path

    def _found(self, path: str) -> Place:
        entry = self._entry(path)
        return self.lookup(entry)[0] if isinstance(entry, EntryName) else ROOT


_BY_NAME = frozenset(
    ("mkdir", "mknod", "symlink", "link", "unlink", "rmdir", "rename", "create", "hide")
)
_BY_INODE = frozenset(
    (
        *("getattr", "readlink", "listdir", "opendir", "chmod", "chown", "utimens"),
        *("getxattr", "listxattr", "setxattr", "removexattr", "open", "truncate", "is_in_use"),
    )
)


def failing(action: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The name of the errno that an action fails with; "" if it succeeds."""
    try:
        action(*args, **kwargs)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    except VfsdError as error:
        return errno.errorcode[error.errno]
    return ""

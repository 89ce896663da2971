"""The states that a disk may have after a power cut, according to a log of calls.

Synced data is there.  For everything else, there are three models:

least    nothing: neither data, nor names whose directory was not synced
torn     any of it, in any order: blocks of writes, sizes and names, each by itself
journal  like ext4 and XFS: names in the order of their changes, up to some moment; each fsync of
         any file syncs all names so far; data as in `torn`

A rename happens or does not, also from one directory to another, and lasts when either is synced.
The first two are worse than any current file system, but POSIX guarantees no more.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path

_HEAD = struct.Struct("=IIIIQqQ")
_BLOCK = 4096
_VOLATILE = "-shm"
"""The suffix of SQLite's shared memory, which SQLite creates again after a power cut."""


class What(IntEnum):
    """Entries of the log, as in `shim.c`."""

    CREATE = 1
    NAMELESS = 2
    WRITE = 3
    TRUNCATE = 4
    ZERO = 5
    SYNC = 6
    SYNCDIR = 7
    SYNCALL = 8
    RENAME = 9
    EXCHANGE = 10
    LINK = 11
    UNLINK = 12
    MKDIR = 13
    RMDIR = 14
    SYMLINK = 15
    MARK = 16


class Model(Enum):
    LEAST = "least"
    TORN = "torn"
    JOURNAL = "journal"
    ALL = "all"  #: no power cut at all


@dataclass(frozen=True, slots=True)
class Entry:
    """One call that went through."""

    what: What
    file: int  #: inode number
    offset: int
    length: int
    path: str
    other: str
    data: bytes


def read_log(log: Path) -> list[Entry]:
    """All of a log."""
    raw = log.read_bytes()
    entries, at = [], 0
    while at < len(raw):
        what, path_length, other_length, _, file, offset, length = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        path, at = os.fsdecode(raw[at : at + path_length]), at + path_length
        other, at = os.fsdecode(raw[at : at + other_length]), at + other_length
        data = raw[at : at + length] if what == What.WRITE else b""
        at += len(data)
        entries.append(Entry(What(what), file, offset, length, path, other, data))
    return entries


@dataclass(eq=False)
class _Item:
    """A file, directory or symbolic link."""

    kind: str
    data: bytes = b""
    target: str = ""
    changes: list[_Change] = field(default_factory=list)


@dataclass(slots=True)
class _Change:
    """A change of a file's bytes: data at an offset, or, without data, a new size or a hole."""

    what: What
    offset: int
    length: int
    data: bytes
    synced: bool = False


@dataclass(slots=True)
class _Renaming:
    """A change of names: some are removed, some are added."""

    gone: tuple[str, ...]
    new: tuple[tuple[str, _Item], ...]
    synced: bool = False

    @property
    def folders(self) -> set[str]:
        return {os.path.dirname(path) for path in (*self.gone, *(path for path, _ in self.new))}


class Disk:
    """A directory in its original state, with all later changes."""

    def __init__(self, top: Path) -> None:
        """The contents of `top` now, all of them synced."""
        self._top = str(top)
        self._base: dict[str, _Item] = {self._top: _Item("directory")}
        self._by_inode: dict[int, _Item] = {}
        for path in sorted(top.rglob("*")):
            found = path.lstat()
            item = self._by_inode.get(found.st_ino) if path.is_file() else None
            if item is None:
                item = _read(path)
            self._base[str(path)] = self._by_inode[found.st_ino] = item
        self._now = dict(self._base)
        self._renamings: list[_Renaming] = []
        self._journaled = 0

    def do(self, entry: Entry) -> None:
        """One more call."""
        what = entry.what
        if what in (What.WRITE, What.TRUNCATE, What.ZERO):
            self._by_inode[entry.file].changes.append(
                _Change(what, entry.offset, entry.length, entry.data)
            )
        elif what is What.NAMELESS:
            self._by_inode[entry.file] = _Item("file")
        elif what is What.SYNC:
            for change in self._by_inode[entry.file].changes:
                change.synced = True
            self._journaled = len(self._renamings)
        elif what is What.SYNCDIR:
            for renaming in self._renamings:
                renaming.synced |= entry.path in renaming.folders
            self._journaled = len(self._renamings)
        elif what is What.SYNCALL:
            self._sync_all()
        elif what is not What.MARK:
            self._rename(entry)

    def _sync_all(self) -> None:
        for item in self._by_inode.values():
            for change in item.changes:
                change.synced = True
        for renaming in self._renamings:
            renaming.synced = True
        self._journaled = len(self._renamings)

    def _rename(self, entry: Entry) -> None:
        now, path, other = self._now, entry.path, entry.other
        if entry.what in (What.CREATE, What.MKDIR, What.SYMLINK):
            kind = {What.MKDIR: "directory", What.SYMLINK: "link"}.get(entry.what, "file")
            item = self._by_inode[entry.file] = _Item(kind, target=other)
            done = _Renaming((), ((path, item),))
        elif entry.what is What.LINK:
            done = _Renaming((), ((path, self._by_inode[entry.file]),))
        elif entry.what is What.RENAME:
            assert now[path].kind != "directory", "directories of a store are never moved"
            done = _Renaming((path,), ((other, now[path]),))
        elif entry.what is What.EXCHANGE:
            done = _Renaming((), ((path, now[other]), (other, now[path])))
        else:
            done = _Renaming((path,), ())
        _apply(now, done)
        self._renamings.append(done)

    def write_to(self, target: Path, model: Model, chance: random.Random) -> None:
        """Write to `target`, a new path, a state of this directory after a power cut now."""
        names = dict(self._base)
        kept = chance.choice((0.2, 0.5, 0.8))
        journaled = chance.randint(self._journaled, len(self._renamings))
        for number, renaming in enumerate(self._renamings):
            if model is Model.JOURNAL:
                survives = number < journaled
            else:
                survives = renaming.synced or _survives(model, chance, kept)
            if survives:
                _apply(names, renaming)
        written: dict[int, Path] = {}
        for path in sorted(names):  # a directory comes before what is in it
            item, place = names[path], target / os.path.relpath(path, self._top)
            if not place.parent.is_dir() or path.endswith(_VOLATILE):
                continue  # its directory did not survive
            if item.kind == "directory":
                place.mkdir()
            elif item.kind == "link":
                place.symlink_to(item.target)
            elif id(item) in written:
                place.hardlink_to(written[id(item)])
            else:
                place.write_bytes(_contents(item, model, chance, kept))
                written[id(item)] = place


def _read(path: Path) -> _Item:
    if path.is_symlink():
        return _Item("link", target=os.readlink(path))
    return _Item("directory") if path.is_dir() else _Item("file", path.read_bytes())


def _apply(names: dict[str, _Item], renaming: _Renaming) -> None:
    for path in renaming.gone:
        names.pop(path, None)
    names.update(renaming.new)


def _survives(model: Model, chance: random.Random, kept: float) -> bool:
    return model is Model.ALL or (model is not Model.LEAST and chance.random() < kept)


def _contents(item: _Item, model: Model, chance: random.Random, kept: float) -> bytes:
    data = bytearray(item.data)
    for change in item.changes:
        if change.what is What.WRITE:
            for offset, block in _blocks(change):
                if change.synced or _survives(model, chance, kept):
                    data.extend(bytes(max(0, offset - len(data))))
                    data[offset : offset + len(block)] = block
        elif change.synced or _survives(model, chance, kept):
            if change.what is What.TRUNCATE:
                del data[change.length :]
                data.extend(bytes(change.length - len(data)))
            else:
                end = min(len(data), change.offset + change.length)
                data[change.offset : end] = bytes(max(0, end - change.offset))
    return bytes(data)


def _blocks(change: _Change) -> Iterator[tuple[int, bytes]]:
    """The parts that are written as a whole or not at all: blocks of the file."""
    at = change.offset
    end = at + len(change.data)
    while at < end:
        until = min(end, (at // _BLOCK + 1) * _BLOCK)
        yield at, change.data[at - change.offset : until - change.offset]
        at = until


def marks(entries: Sequence[Entry]) -> int:
    """The number of steps that had been acknowledged."""
    return sum(entry.what is What.MARK for entry in entries)

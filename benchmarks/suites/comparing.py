"""Compares two trees: every attribute that a careful copy must keep."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_SHOWN = 10


def facts(
    root: Path, *, owners: bool = True, links: bool = True, xattrs: bool = False
) -> dict[str, tuple[object, ...]]:
    """By path: mode, owner, mtime, size, checksum or target, and the first name of the inode.

    Directories have no size here, because file systems count it differently.
    """
    found: dict[str, tuple[object, ...]] = {}
    first: dict[int, str] = {}
    for path in _below(root):
        about = path.lstat()
        name = path.relative_to(root).as_posix()
        inside: object = None
        if stat.S_ISLNK(about.st_mode):
            inside = os.readlink(path)
        elif stat.S_ISREG(about.st_mode):
            inside = (about.st_size, checksum(path))
        found[name] = (
            oct(about.st_mode),
            (about.st_uid, about.st_gid) if owners else None,
            about.st_mtime_ns,
            inside,
            first.setdefault(about.st_ino, name)
            if links and not stat.S_ISDIR(about.st_mode)
            else None,
            _xattrs(path) if xattrs else None,
        )
    return found


def differences(
    one: dict[str, tuple[object, ...]], other: dict[str, tuple[object, ...]]
) -> tuple[str, ...]:
    """A description of the first few differences; empty if there are none."""
    names = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    told = [f"{name!r}: {one.get(name)} and {other.get(name)}" for name in names[:_SHOWN]]
    if len(names) > _SHOWN:
        told.append(f"and {len(names) - _SHOWN} more")
    return tuple(told)


def checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _below(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        for name in sorted(folders + files):
            yield Path(folder) / name


def _xattrs(path: Path) -> dict[str, bytes]:
    """Attributes set by users; computed ones differ from place to place."""
    names = os.listxattr(path, follow_symlinks=False)
    return {
        name: os.getxattr(path, name, follow_symlinks=False)
        for name in sorted(names)
        if not name.startswith("user.vfsd.")
    }

"""Finds the store that shows a path, and the directory of that store.

A path may be in a mount or in a store directory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vfsd.disk.mount_queries import MountedNode, MountLocation, located, mount_above, mounts
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import MountError, NoStoreError, StoreError


@dataclass(frozen=True, slots=True)
class MountedPath:
    """A path in a mount, relative to its store."""

    root: Path  #: the store's directory
    name: str  #: path from the root of the store; empty for the root itself


def resolve(paths: Sequence[str], known: Sequence[Path] = ()) -> list[MountedPath | None]:
    """Return the positions of paths in stores; None for those outside of mounts.

    `known` are directories to try if the recorded path of the store leads elsewhere here. Raises
    `StoreError` if the store cannot be found, `MountError` if the mount fails, `BusyError` if it
    does not answer.
    """
    table = mounts()
    if table and not any(mount.is_ours for mount in table):
        return [None] * len(paths)
    try:
        found = located(paths)
    except OSError as error:
        raise MountError(
            f"{error.filename} cannot be looked up in its mount: {error.strerror}",
            hint="run `vfsd doctor` to see which mounts answer",
        ) from error
    return [_resolved(path, one, known) for path, one in zip(paths, found, strict=True)]


def is_store(path: Path) -> bool:
    """Return whether a directory is a store."""
    try:
        StoreDirectory.open(path)
    except (StoreError, OSError):
        return False
    return True


def _resolved(
    path: str, location: MountLocation | None, known: Sequence[Path]
) -> MountedPath | None:
    if location is None:
        _require_elsewhere(path)
        return None
    node = location.node
    directory = _store_of(path, node, known)
    holder = directory.mounted_by() or {}
    device = _text(location.device)
    table = mounts()
    is_mount = holder.get("device") == device or (
        "device" not in holder
        and (not table or any(one.is_ours and one.device == device for one in table))
    )
    if not is_mount:
        raise StoreError(
            f"{path} shows {node.name!r} of the store in {directory.root} through another file "
            "system",
            hint=f"give its path in the mount itself, at {holder.get('place', 'its place')}",
        )
    return MountedPath(directory.root, node.name)


def _store_of(path: str, node: MountedNode, known: Sequence[Path]) -> StoreDirectory:
    """Return the store that a mount shows. Raises `StoreError`, naming both."""
    other = None
    for root in (Path(node.root), *known):
        try:
            directory = StoreDirectory.open(root)
            if directory.identity == node.store:
                return directory
        except (NoStoreError, OSError):
            continue
        other = other or directory
    shown = f"{path} shows {node.name!r} of the store {node.store.id} in {node.root}"
    hint = "run the command where that store is visible, or give its directory with --store"
    if other is None:
        raise NoStoreError(f"{shown}, which is not there in this mount namespace", hint=hint)
    raise StoreError(
        f"{shown}, and {other.root} is another store here: {other.id}"
        + (", a copy of it" if other.id == node.store.id else ""),
        hint=hint,
    )


def _require_elsewhere(path: str) -> None:
    """Raise `MountError` for a path in a mount that did not report its store."""
    found = mount_above(Path(os.path.realpath(path)))
    if found is not None and found.is_ours:
        raise MountError(
            f"the mount at {found.place} does not tell which store it shows",
            hint="it belongs to another user, or to an older vfsd: unmount it, and mount it again",
        )


def _text(device: int) -> str:
    """Format a device number as in the mount table."""
    return f"{os.major(device)}:{os.minor(device)}"

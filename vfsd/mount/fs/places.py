"""How requests name what they refer to: by path, by inode number, or by a name in a directory.

Adapters that know only paths use text. Adapters that know inodes use the other forms, which stay
valid when a directory above is renamed.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from vfsd.core.model import Node
from vfsd.mount.fs.posix import FIRST_VIEW_INO


@dataclass(frozen=True)
class ViewPath:
    """A path in ``NAME@/``, whether or not a view exists there."""

    video: Node  #: or the directory of a timeline
    path: str

    @cached_property
    def ino(self) -> int:
        """A stable inode number, different from those of real files."""
        text = os.fsencode(f"{self.video.ino}/{self.path}")
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return int.from_bytes(digest) | FIRST_VIEW_INO

    def child(self, name: str) -> ViewPath:
        """Return the path of an entry of this view directory."""
        return ViewPath(self.video, f"{self.path}/{name}" if self.path else name)


class EntryName(NamedTuple):
    """A name in a directory, whether or not it exists."""

    parent: int | ViewPath  #: the directory, by inode number or as a view directory
    name: str


Place = str | int | ViewPath | EntryName
"""A path, the number of an inode, a view, or a name in a directory."""


def last_name(place: Place) -> str:
    """Return the last name of a place; empty for an inode."""
    if isinstance(place, str):
        return place.rpartition("/")[2]
    if isinstance(place, ViewPath):
        return place.path.rpartition("/")[2]
    return place.name if isinstance(place, EntryName) else ""

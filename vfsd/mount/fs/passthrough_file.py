"""What the kernel may read by itself of something that is open."""

from __future__ import annotations

from typing import NamedTuple


class WholeFile(NamedTuple):
    """The file of an inode, and a descriptor of it that is the file system's."""

    ino: int
    fd: int | None  #: of a file with these very bytes, which nobody changes; None: there is none
    version: str | None = None  #: of its bytes, where an inode may have others at another time

"""How the bytes of an object are read, wherever they are: `ObjectReader`, `StoredObjects`, and the
reader of a local file.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol


class ObjectReader(Protocol):
    """The bytes of one open object. Thread-safe.

    Reads beyond the end are cut off there. Reads raise `OSError`, and `UnreachableError` if the
    bytes are on a server that does not answer.
    """

    @property
    def size(self) -> int:
        """Size of the object in bytes."""
        ...

    @property
    def identity(self) -> Hashable:
        """A value that differs for other bytes: another file, or one that was written to."""
        ...

    @property
    def is_stable(self) -> bool:
        """Whether bytes that were compared once need not be compared at each read.

        Not so for a cache on the disk, which drops blocks and fetches them again.
        """
        ...

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes from `position`; fewer only at the end."""
        ...

    def readinto(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from `position`; return the number of bytes."""
        ...

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of half-open ranges, in their order.

        They are planned together, so remote ones arrive in one round trip.
        """
        ...

    def read_again(self, position: int, size: int) -> bytes:
        """Read as `read`, but past the caches, for bytes that looked damaged."""
        ...

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Start to fetch half-open ranges into the cache, and return at once. Never fails."""
        ...

    def cached(self, position: int, size: int) -> int:
        """Return how many of these bytes can be read without a request to a server."""
        ...

    def descriptor(self) -> int:
        """Return a descriptor of a local file with all bytes, which stays the reader's.

        Remote objects are fetched completely first.
        """
        ...

    def duplicate(self) -> ObjectReader:
        """Return another reader of the same bytes, which is closed separately."""
        ...

    def switch_to(self, other: ObjectReader) -> None:
        """Read the bytes of `other` from now on, which stays the caller's.

        Called if the name of a local file leads to another file now, or if an object has moved in
        the bucket. A reader of one kind may ignore the other.
        """
        ...

    def close(self) -> None:
        """Close the object; later reads raise `OSError`."""
        ...


class StoredObjects(Protocol):
    """The objects of a store for its readers."""

    @property
    def is_local(self) -> bool:
        """Whether all objects are local files, so that `ObjectReader.prefetch` has no effect."""
        ...

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes; None if it is missing."""
        ...

    def is_elsewhere(self, key: str) -> bool:
        """Return whether an object may be a file of another host, which this one cannot read."""
        ...

    def open(self, key: str) -> ObjectReader:
        """Open an object.

        Raises `FileNotFoundError`, other `OSError`, `IntegrityError` for an invalid key, and
        `UnreachableError`.
        """
        ...

    def refresh(self, key: str) -> None:
        """Look up where an object is when it is next opened: a repair may have moved it."""
        ...

    def all_keys(self) -> Iterator[str]:
        """Yield the key of every object, in the catalog or not."""
        ...

    def local_path(self, key: str) -> Path | None:
        """Return the path of an object that is a local file; None for a remote one."""
        ...


class LocalReader:
    """Reads a local file; an `ObjectReader`."""

    __slots__ = ("fd",)
    is_stable = True

    def __init__(self, fd: int) -> None:
        """`fd` becomes owned by this object."""
        self.fd = fd

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    @property
    def identity(self) -> tuple[int, int, int, int]:
        found = os.fstat(self.fd)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self.fd, size, position)

    def readinto(self, buffer: memoryview, position: int) -> int:
        return os.preadv(self.fd, (buffer,), position)

    read_some = read

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [os.pread(self.fd, end - start, start) for start, end in ranges]

    def read_again(self, position: int, size: int) -> bytes:
        # Dropped from the page cache, so that the disk is read.
        with suppress(OSError):
            os.posix_fadvise(self.fd, position, size, os.POSIX_FADV_DONTNEED)
        return os.pread(self.fd, size, position)

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Leave it to the readahead of the kernel."""

    def cached(self, position: int, size: int) -> int:
        return max(0, min(size, self.size - position))

    def descriptor(self) -> int:
        return self.fd

    def duplicate(self) -> LocalReader:
        return LocalReader(os.dup(self.fd))

    def switch_to(self, other: ObjectReader) -> None:
        # The number stays: other threads and the kernel's passthrough use it.
        os.dup2(other.descriptor(), self.fd, inheritable=False)

    def close(self) -> None:
        # A number that was closed may belong to another file soon.
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

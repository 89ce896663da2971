"""Open files of `VfsdFileSystem`: readers at offsets, and a writer that publishes when closed."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vfsd.api.store_files import ByteReader
from vfsd.disk.tempfiles import NewFile
from vfsd.errors import VfsdError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

# Readers of containers ask for a few bytes at a time; larger reads pass the buffer by.
_BUFFER_BYTES = 64 << 10


@contextmanager
def as_os_errors(path: str) -> Iterator[None]:
    """Raise errors of the store as `OSError` with their errno, which callers of fsspec expect."""
    try:
        yield
    except VfsdError as error:
        text = str(error) if error.hint is None else f"{error}; {error.hint}"
        raise OSError(error.errno, text, path) from error


class _RawReader(io.RawIOBase):
    def __init__(self, source: ByteReader, path: str) -> None:
        super().__init__()
        self._source = source
        self._path = path
        self._at = 0
        self.size = source.size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        # A view is rendered up to its fixed size, and a file that is still written may grow.
        with as_os_errors(self._path):
            count = self._source.readinto(memoryview(buffer).cast("B"), self._at)
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}.get(whence)
        if base is None or base + offset < 0:
            raise OSError(errno.EINVAL, f"cannot seek to {offset} from {whence}", self._path)
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._source.close()


class VfsdReader(io.BufferedReader):
    """A video, a view or a plain file, open for reading; readable and seekable."""

    def __init__(self, fs: Any, path: str, source: ByteReader) -> None:
        """Take over `source`."""
        raw = _RawReader(source, path)
        super().__init__(raw, _BUFFER_BYTES)
        self.fs = fs
        self.path = path
        self.size = raw.size  #: bytes

    @property
    def full_name(self) -> str:
        """The URL of the file."""
        return str(self.fs.unstrip_protocol(self.path))

    def info(self) -> dict[str, Any]:
        """As `VfsdFileSystem.info`."""
        found: dict[str, Any] = self.fs.info(self.path)
        return found


class VfsdWriter(io.RawIOBase):
    """A new file.  It has its name when it is complete, not before.

    `close` publishes it, unless an exception passes through the block that writes it: then nothing
    is stored, and an older file of that name stays.  A writer that is never closed stores nothing.
    """

    def __init__(
        self,
        fs: Any,
        path: str,
        new: NewFile,
        publish: Callable[[NewFile], object],
        *,
        autocommit: bool,
    ) -> None:
        """Take over `new`; without `autocommit`, only `commit` publishes it."""
        super().__init__()
        self.fs = fs
        self.path = path
        self._new = new
        self._publish = publish
        self._autocommit = autocommit
        self._is_done = False
        self._outer_error = sys.exception()

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        if self.closed:
            raise ValueError(f"{self.path} is closed")
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            left = left[self._new.file.write(left) :]
        return size

    def tell(self) -> int:
        return self._new.file.tell()

    def commit(self) -> None:
        """Publish the file.  Raises `OSError`."""
        if self._is_done:
            return
        try:
            with as_os_errors(self.path):
                self._publish(self._new)
        finally:
            self.discard()

    def discard(self) -> None:
        """Drop what was written."""
        self._is_done = True
        self._new.remove()

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        # `fsspec.open` and text wrappers call `close` where a block fails, and do not say so.
        error = sys.exception()
        if error is not None and error is not self._outer_error:
            self.discard()
        elif self._autocommit:
            self.commit()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None and not self.closed:
            self.discard()
        self.close()

    def __del__(self) -> None:
        # That of `IOBase` would publish half a file.
        if not self.__dict__.get("_is_done", True):
            self.discard()

"""What can be read of an MP4 or MOV file of fragments while it is written.

The file begins with a movie box that lists no samples; then come fragments, each a movie fragment
box and its media data (ISO/IEC 14496-12, 8.8).  Fragments that are there as a whole do not change
any more.  New ones are looked at alone: the demuxer is shown the beginning of the file, one free
box in the place of all that it knows already, and the rest.
"""

from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING

from vfsd.codecs.decoding.source import Source
from vfsd.codecs.examining.examine import Examination, examine_source

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER = 1 << 18
_BEFORE_THE_MOVIE = (b"ftyp", b"free", b"skip", b"wide", b"uuid")
_AROUND_FRAGMENTS = (b"free", b"skip", b"styp", b"sidx", b"prft", b"emsg", b"uuid")
_LONGEST_BEGINNING = 1 << 24
"""Bytes of a movie box and what is before it."""


class FragmentedPrefix:
    """The fragments of a file, as they come.  Not thread-safe.

    `fd` stays the caller's.
    """

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name
        self._beginning = b""  # of the file, up to the end of the movie box
        self._end = 0  # of the fragments that were looked at

    @property
    def size(self) -> int:
        """Bytes of the file up to the end of the fragments that were looked at."""
        return self._end

    def file(self) -> io.BufferedReader:
        """What of the file was looked at, which is a file as well, and stays what it is.

        Empty while there is nothing.  Keeps what it reads open.
        """
        return io.BufferedReader(_PrefixFile(self._fd, self._beginning, self._end), _BUFFER)

    def advance(self) -> Examination | None:
        """The packets of all fragments that are whole since it was last asked; None: no new ones.

        Their places are those in the file.  Raises `RefusedMediaError` for what cannot be served.
        """
        if not self._beginning:
            self._beginning = self._found_beginning()
            self._end = len(self._beginning)
        if not self._beginning:
            return None
        end = self._end_of_fragments()
        if end == self._end:
            return None
        with _Part(self._fd, self._beginning, self._end, end) as part:
            found = examine_source(part, self._name)
        self._end = end
        return found

    def _found_beginning(self) -> bytes:
        """Empty while the movie box is not there."""
        at, kind = 0, b""
        while kind != b"moov":
            box = self._box(at)
            if box is None or box[0] not in (*_BEFORE_THE_MOVIE, b"moov"):
                return b""
            kind, at = box
        return os.pread(self._fd, at, 0) if at <= _LONGEST_BEGINNING else b""

    def _end_of_fragments(self) -> int:
        """The end of the last fragment whose media data are there as a whole."""
        at = end = self._end
        is_inside = False  # of a fragment whose media data come
        while (box := self._box(at)) is not None:
            kind, at = box
            if kind == b"moof":
                is_inside = True
            elif kind == b"mdat" and is_inside:
                end, is_inside = at, False
            elif kind not in _AROUND_FRAGMENTS:
                break  # the index that finishes the file
        return end

    def _box(self, at: int) -> tuple[bytes, int] | None:
        """The kind of a box, and its end; None where it is not there as a whole."""
        head = os.pread(self._fd, 16, at)
        if len(head) < 8:
            return None
        size = int.from_bytes(head[:4])
        if size == 1:
            size = int.from_bytes(head[8:16])
        end = at + size
        return (head[4:8], end) if size >= 8 and end <= os.fstat(self._fd).st_size else None


class _PrefixFile(io.RawIOBase):
    """The first bytes of a file, with the beginning that it has while it grows."""

    def __init__(self, fd: int, beginning: bytes, size: int) -> None:
        self._fd = os.dup(fd)
        self._beginning = beginning
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._beginning[self._at : self._at + len(view)]
        if not data:
            data = os.pread(self._fd, max(0, min(len(view), self._size - self._at)), self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        at = offset + {os.SEEK_CUR: self._at, os.SEEK_END: self._size}.get(whence, 0)
        if at < 0:
            raise OSError(errno.EINVAL, "a place before the start of the file")
        self._at = at
        return at

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


class _Part(Source):
    """A file of which nothing is between its beginning and `start`, and nothing after `end`."""

    def __init__(self, fd: int, beginning: bytes, start: int, end: int) -> None:
        super().__init__(fd)
        gap = start - len(beginning)
        filling = b"\0\0\0\1free" + gap.to_bytes(8) if gap else b""
        self._head = beginning + filling
        self._end = end

    @property
    def size(self) -> int:
        return self._end

    def read_some(self, position: int, size: int) -> bytes:
        if position < len(self._head):
            return self._head[position : position + size]
        return os.pread(self.fd, min(size, max(0, self._end - position)), position)

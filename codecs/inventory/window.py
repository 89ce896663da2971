"""Reads small pieces of a file through a window, so that not each costs a system call."""

from __future__ import annotations

from collections.abc import Iterator

from vfsd.codecs.decoding.demuxer import Source

_WINDOW = 1 << 16
_CHUNK = 1 << 20


class Window:
    """The bytes of a source at any position.  Not thread-safe."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.size = source.size
        self._start = 0
        self._data = b""

    def read(self, position: int, size: int) -> bytes:
        """`size` bytes from `position` on; fewer only at the end of the file."""
        offset = position - self._start
        if offset < 0 or offset + size > len(self._data):
            self._start, offset = position, 0
            self._data = self._source.read_at(position, max(size, _WINDOW))
        return self._data[offset : offset + size]

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes from `start` to before `end`, in parts."""
        while start < end:
            part = self._source.read_at(start, min(_CHUNK, end - start))
            if not part:
                return
            yield part
            start += len(part)

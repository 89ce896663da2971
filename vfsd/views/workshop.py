"""The tools that views are made with, kept warm."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from vfsd.codecs.packets import PacketReader
from vfsd.tools import Tools
from vfsd.views.cursors import Cursors
from vfsd.views.footage import Footage

_READERS = 4


class PacketReaders:
    """Idle packet readers, at most `_READERS`.  Thread-safe.

    A reader of a container that cannot be sliced knows its way on from where it stands.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[str, PacketReader]] = []
        self._most = _READERS
        self._guard = threading.Lock()

    @contextmanager
    def reader(self, footage: Footage) -> Iterator[PacketReader]:
        """A reader of this block's own.  Raises `OSError`."""
        reader = self._take(footage.key)
        if reader is None:
            physical = footage.physical
            reader = PacketReader(footage.path, physical.media, physical.access, footage.table)
        try:
            yield reader
        except BaseException:
            reader.close()
            raise
        with self._guard:
            self._idle.append((footage.key, reader))
            surplus = self._idle[: max(0, len(self._idle) - self._most)]
            del self._idle[: len(surplus)]
        for _, old in surplus:
            old.close()

    def close(self) -> None:
        with self._guard:
            self._most = 0
            idle, self._idle = self._idle, []
        for _, reader in idle:
            reader.close()

    def _take(self, key: str) -> PacketReader | None:
        with self._guard:
            for number in range(len(self._idle) - 1, -1, -1):
                if self._idle[number][0] == key:
                    return self._idle.pop(number)[1]
        return None


class Workshop:
    """The tools that renditions are made with, shared by all of a process."""

    def __init__(self, tools: Tools, memory: int) -> None:
        """`memory` is what idle decoders may hold: bytes."""
        self.pool = tools.pool
        self.packs = tools.packs
        self.mender = tools.mender
        self.cursors = Cursors(tools, memory)
        self.readers = PacketReaders()

    def close(self) -> None:
        self.cursors.close()
        self.readers.close()

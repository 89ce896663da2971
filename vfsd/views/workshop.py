"""The tools that views are made with, kept warm."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from vfsd.codecs.packets import PacketReader
from vfsd.frametable import FrameTable
from vfsd.model import Access
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
        with self._of(footage, footage.key, footage.physical.access, footage.table) as reader:
            yield reader

    @contextmanager
    def reader_of_sound(self, footage: Footage, table: FrameTable) -> Iterator[PacketReader]:
        """As `reader`, of packets of sound, which lie in the file in one piece."""
        with self._of(footage, f"{footage.key}/sound", Access.EXTENT, table) as reader:
            yield reader

    @contextmanager
    def _of(
        self, footage: Footage, key: str, access: Access, table: FrameTable
    ) -> Iterator[PacketReader]:
        reader = self._take(key)
        if reader is None:
            reader = PacketReader(footage.path, footage.physical.media, access, table)
        try:
            yield reader
        except BaseException:
            reader.close()
            raise
        with self._guard:
            self._idle.append((key, reader))
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

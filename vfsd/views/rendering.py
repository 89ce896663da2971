"""Making renditions: slots are made when they are first read, once, and a little ahead."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import BinaryIO

import numpy as np

from vfsd.accounting import Timing
from vfsd.host import cores
from vfsd.objects import Progress
from vfsd.parts import Parts
from vfsd.tools import Tools
from vfsd.views.decoding import SlotsRead
from vfsd.views.rendercache import FileCache, MemoryCache, RenderCache
from vfsd.views.rendition import PaddedRendition, Rendition, StillRendition
from vfsd.views.workshop import Workshop

_MEMORY_BYTES = 64 << 20
_AHEAD_BYTES = 16 << 20
_AHEAD_SLOTS = 8
"""Slots that follow the one being read are made beforehand: at most so many, and so large."""
_CHUNK = 1 << 20


class Renderer:
    """What all renditions of a process share: tools, caches, threads.  Thread-safe."""

    def __init__(self, parts: Parts, tools: Tools) -> None:
        files = None
        if not parts.read_only:
            files = FileCache(parts.directory.cache, parts.settings.view_cache_bytes)
        self.workshop = Workshop(tools, parts.settings.decoder_memory // 2, parts.suspects)
        self._reads = tools.reads
        self._cache = RenderCache(MemoryCache(_MEMORY_BYTES), files)

    def slot(self, rendition: Rendition, slot: int) -> bytes:
        """The bytes of a slot, without the zeros that fill it up."""
        return self._cache.get(
            f"{rendition.key}.{slot}",
            lambda: rendition.make(slot, self.workshop),
            keep=slot in rendition.storable,
        )

    def measured(self, still: StillRendition) -> StillRendition:
        """A JPEG, with its size; it is made for that, unless it was before."""
        return still.of_size(len(self.slot(still, 1)))

    def note(self, rendition: Rendition, read: SlotsRead, timing: Timing) -> None:
        """Remember that somebody has read those slots."""
        pictures = rendition.pictures(read.sorted())
        if pictures is not None:
            self._reads.note(pictures.footage.digest, partial(pictures.account, timing))

    def close(self) -> None:
        self.workshop.close()


class RenditionFile:
    """A rendition, open for reading.  Safe to use from several threads."""

    def __init__(self, renderer: Renderer, rendition: Rendition) -> None:
        self._renderer = renderer
        self._rendition = rendition
        self._slots = rendition.slots
        self._runner = _Forerunner(renderer, rendition)
        self._opened_ns = time.time_ns()
        self._waited = 0.0
        self._read = SlotsRead()

    @property
    def size(self) -> int:
        """Bytes."""
        return self._slots.size

    @property
    def version(self) -> str:
        """Stands for its bytes."""
        return self._rendition.key

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` with what lies at `offset`; how many bytes that were.

        Fewer than asked for only at the end of the file.  Raises `IntegrityError`, `OSError`.
        """
        began = time.perf_counter()
        wanted = max(0, min(len(buffer), self.size - offset))
        if wanted:
            first, last = self._slots.at(offset), self._slots.at(offset + wanted - 1)
            self._runner.asked_for(first.slot, last.slot)
        done = 0
        while done < wanted:
            place = self._slots.at(offset + done)
            within = offset + done - place.start
            count = min(wanted - done, place.size - within)
            data = self._renderer.slot(self._rendition, place.slot)
            self._read.add(place.slot)
            self._runner.follow(place.slot)
            part = memoryview(data)[within : within + count]
            buffer[done : done + len(part)] = part
            buffer[done + len(part) : done + count] = bytes(count - len(part))
            done += count
        self._waited += time.perf_counter() - began
        return done

    def slot(self, slot: int) -> bytes:
        """The bytes of a slot, without the zeros that fill it up.  Raises as `readinto` does."""
        began = time.perf_counter()
        data = self._renderer.slot(self._rendition, slot)
        self._read.add(slot)
        self._runner.follow(slot)
        self._waited += time.perf_counter() - began
        return data

    def close(self) -> None:
        self._runner.close()
        self._renderer.note(self._rendition, self._read, Timing(self._opened_ns, self._waited))


class _Forerunner:
    """Makes the slots that a sequential reader will want next.

    At most as many as were read in a row before: who opens a file to look at its middle does not
    wait for what he will never read.
    """

    def __init__(self, renderer: Renderer, rendition: Rendition) -> None:
        self._renderer = renderer
        self._rendition = rendition
        self._guard = threading.Lock()
        self._begin = 0  # the first of the slots that are read in a row
        self._asked = -1  # the last of them that was asked for
        self._position = -1  # the last that was read
        self._next = 0  # the slot to be made next
        self._ahead = 0  # slots to be made after the position
        self._running = 0
        # Encoding keeps a thread busy by itself; decoding goes on where the last slot ended.
        self._most = cores() if rendition.storable else 1
        self._closed = False

    def asked_for(self, first: int, last: int) -> None:
        """The reader wants the slots ``first <= slot <= last``, none of which he has got yet.

        Where he has jumped, nothing more is made in the old place, as he waits for the new one.
        """
        with self._guard:
            if not self._begin <= first <= self._asked + 1:
                self._begin, self._position, self._asked = first, first - 1, last
                self._next, self._ahead = first + 1, 0
            self._asked = max(self._asked, last)

    def follow(self, slot: int) -> None:
        """The reader has got `slot`."""
        with self._guard:
            # What lies elsewhere was asked for before he jumped.
            if not self._position < slot <= self._asked or self._closed:
                return
            self._position = slot
            # The first two segments are what players look at to learn what is in a file.
            self._ahead = min(_AHEAD_SLOTS, slot - self._begin) if slot else 2
            self._next = max(self._next, slot + 1)
            new = max(0, min(self._most - self._running, self._limit() - self._next))
            self._running += new
        for _ in range(new):
            self._renderer.workshop.pool.workers().submit(self._run)

    def close(self) -> None:
        with self._guard:
            self._closed = True

    def _run(self) -> None:
        try:
            while (slot := self._claim()) is not None:
                self._renderer.slot(self._rendition, slot)
        finally:
            with self._guard:
                self._running -= 1

    def _claim(self) -> int | None:
        with self._guard:
            if self._closed or self._next >= self._limit():
                return None
            self._next += 1
            return self._next - 1

    def _limit(self) -> int:
        """The slot before which to stop."""
        slots, first = self._rendition.slots, self._position + 1
        stop = first
        size = 0
        while stop < min(len(slots), first + self._ahead):
            size += slots[stop].size
            if size > _AHEAD_BYTES:
                break
            stop += 1
        return stop


def write_out(
    renderer: Renderer, rendition: Rendition, out: BinaryIO, on_progress: Progress | None = None
) -> int:
    """Write the whole file that a rendition is; how many bytes that were.

    Where `out` is seekable, it gets the same without padding.  `on_progress` is called with the
    number of bytes of the padded file that are done since the last call.
    """
    if isinstance(rendition, PaddedRendition) and out.seekable():
        return _write_trimmed(renderer, rendition, out, on_progress)
    file = RenditionFile(renderer, rendition)
    buffer = memoryview(bytearray(_CHUNK))
    at = 0
    try:
        while count := file.readinto(buffer, at):
            out.write(buffer[:count])
            at += count
            if on_progress is not None:
                on_progress(count)
    finally:
        file.close()
    return at


def _write_trimmed(
    renderer: Renderer, rendition: PaddedRendition, out: BinaryIO, on_progress: Progress | None
) -> int:
    """The header comes last: it tells where the segments are."""
    file = RenditionFile(renderer, rendition)
    slots = rendition.slots
    start = out.tell()
    sizes = np.zeros(len(slots) - 1, np.int64)
    out.write(bytes(slots[0].size))
    try:
        for slot in range(1, len(slots)):
            data = rendition.trimmed(slot, file.slot(slot))
            out.write(data)
            sizes[slot - 1] = len(data)
            if on_progress is not None:
                on_progress(slots[slot].size)
    finally:
        file.close()
    out.seek(start)
    out.write(rendition.header_of(sizes))
    return int(out.seek(0, os.SEEK_END)) - start

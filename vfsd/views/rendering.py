"""Making renditions: slots are made when they are first read, once, and a little ahead."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import BinaryIO

import numpy as np

from vfsd.accounting import Timing
from vfsd.host import cores
from vfsd.objects import Progress
from vfsd.parts import Parts
from vfsd.tools import Tools
from vfsd.views.decoding import SlotsRead
from vfsd.views.rendercache import Bytes, FileCache, MemoryCache, RenderCache
from vfsd.views.renderqueue import Check, Lane, Patience, Render
from vfsd.views.rendition import PaddedRendition, Rendition, StillRendition
from vfsd.views.wholes import WholeViews
from vfsd.views.workshop import Workshop

_MEMORY_BYTES = 64 << 20
_AHEAD_BYTES = 16 << 20
_AHEAD_SLOTS = 8
"""Slots that follow the one being read are made beforehand: at most so many, and so large."""
_CHUNK = 1 << 20
_LEAST_ENCODERS, _MOST_ENCODERS = 2, 16
_ENCODERS_BESIDE = 1
"""More than there are cores: one decodes, or reads from a disk, while the others encode."""
DECODERS_A_CORE = 2
"""So many single pictures are made at a time: some wait for a disk, or for each other."""


def encoders() -> int:
    """How many segments are made at a time."""
    return max(_LEAST_ENCODERS, min(cores(), _MOST_ENCODERS)) + _ENCODERS_BESIDE


class Renderer:
    """What all renditions of a process share: tools, caches, threads.  Thread-safe."""

    def __init__(
        self,
        parts: Parts,
        tools: Tools,
        niceness: int = 0,
        whole_bytes: int = 0,
        gives_way: Callable[[], bool] = lambda: False,
    ) -> None:
        """`niceness` is that of the threads which decode and encode, see nice(2); whole files of
        views, for the kernel to read, may take up `whole_bytes`.  While `gives_way` says so, half
        of the cores are left to others when single pictures are made."""
        files = None
        if not parts.read_only:
            files = FileCache(parts.directory.cache, parts.settings.view_cache_bytes)
        self.workshop = Workshop(tools, parts.settings.decoder_memory // 2, parts.suspects)
        self._reads = tools.reads
        self._cache = RenderCache(MemoryCache(_MEMORY_BYTES), files)
        self._segments = Lane("encode", encoders(), niceness)
        hands = DECODERS_A_CORE * cores()
        self._pictures = Lane(
            "render", hands, niceness, lambda: max(1, cores() // 2) if gives_way() else hands
        )
        self._wholes = None
        if whole_bytes:
            self._wholes = WholeViews(parts.directory.cache, whole_bytes, self.slot)

    def slot(self, rendition: Rendition, slot: int, patience: Patience | None = None) -> Bytes:
        """The bytes of a slot, without the zeros that fill it up.

        Raises what `patience` does, which is asked now and then while this takes long.
        """
        return self._cache.get(
            f"{rendition.key}.{slot}",
            partial(self._make, rendition, slot),
            self._lane(rendition, slot),
            keep=slot in rendition.storable,
            patience=patience,
        )

    def ahead(self, rendition: Rendition, slot: int, then: Callable[[], None]) -> Render | None:
        """Have a slot made; see `RenderCache.ahead`."""
        return self._cache.ahead(
            f"{rendition.key}.{slot}",
            partial(self._make, rendition, slot),
            self._lane(rendition, slot),
            then,
            keep=slot in rendition.storable,
        )

    def _make(self, rendition: Rendition, slot: int, check: Check) -> Bytes:
        return rendition.make(slot, self.workshop.checked(check))

    def _lane(self, rendition: Rendition, slot: int) -> Lane:
        is_segment = slot in rendition.storable and not isinstance(rendition, StillRendition)
        return self._segments if is_segment else self._pictures

    def measured(self, still: StillRendition) -> StillRendition:
        """A JPEG, with its size; it is made for that, unless it was before."""
        return still.of_size(len(self.slot(still, 1)))

    def note(self, rendition: Rendition, read: SlotsRead, timing: Timing) -> None:
        """Remember that somebody has read those slots."""
        pictures = rendition.pictures(read.sorted())
        if pictures is not None:
            self._reads.note(pictures.footage.digest, partial(pictures.account, timing))

    def whole(self, rendition: Rendition) -> int | None:
        """A descriptor, the caller's own, of a file with just its bytes, if there is one."""
        return None if self._wholes is None else self._wholes.open(rendition.key)

    def was_read(self, rendition: Rendition, read: SlotsRead) -> None:
        """Somebody has read those slots, and is done."""
        if self._wholes is not None and read.is_all_of(len(rendition.slots)):
            self._wholes.want(rendition)

    def close(self) -> None:
        if self._wholes is not None:
            self._wholes.close()
        self._segments.close()
        self._pictures.close()
        self.workshop.close()


class RenditionFile:
    """A rendition, open for reading.  Safe to use from several threads."""

    def __init__(self, renderer: Renderer, rendition: Rendition) -> None:
        self._renderer = renderer
        self._rendition = rendition
        self._slots = rendition.slots
        self._runner = _Forerunner(renderer, rendition)
        self._whole = renderer.whole(rendition)
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

    @property
    def whole(self) -> int | None:
        """A descriptor of a file with just these bytes, if there is one; valid until `close`."""
        return self._whole

    def readinto(self, buffer: memoryview, offset: int, patience: Patience | None = None) -> int:
        """Fill `buffer` with what lies at `offset`; how many bytes that were.

        Fewer than asked for only at the end of the file.  Raises `IntegrityError`, `OSError`, and
        what `patience` raises, which is asked now and then while this takes long.
        """
        target = np.frombuffer(buffer, np.uint8)
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
            data = self._renderer.slot(self._rendition, place.slot, patience)
            self._read.add(place.slot)
            self._runner.follow(place.slot)
            # By numpy, which lets others compute meanwhile.
            part = np.frombuffer(data, np.uint8)[within : within + count]
            target[done : done + len(part)] = part
            target[done + len(part) : done + count] = 0
            done += count
        self._waited += time.perf_counter() - began
        return done

    def slot(self, slot: int) -> Bytes:
        """The bytes of a slot, without the zeros that fill it up.  Raises as `readinto` does."""
        began = time.perf_counter()
        data = self._renderer.slot(self._rendition, slot)
        self._read.add(slot)
        self._runner.follow(slot)
        self._waited += time.perf_counter() - began
        return data

    def close(self) -> None:
        self._runner.close()
        if self._whole is not None:
            os.close(self._whole)
            self._whole = None
        self._renderer.was_read(self._rendition, self._read)
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
        self._making: dict[int, Render | None] = {}  # None: just begun
        # Encoding keeps a thread busy by itself; decoding goes on where the last slot ended.
        self._most = cores() if rendition.storable else 1
        self._closed = False

    def asked_for(self, first: int, last: int) -> None:
        """The reader wants the slots ``first <= slot <= last``, none of which he has got yet.

        Where he has jumped, nothing more is made in the old place, as he waits for the new one.
        """
        given_up: list[Render | None] = []
        with self._guard:
            if not self._begin <= first <= self._asked + 1:
                self._begin, self._position, self._asked = first, first - 1, last
                self._next, self._ahead = first + 1, 0
                given_up = self._give_up()
            self._asked = max(self._asked, last)
        _unwant(given_up)

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
        self._go_on()

    def close(self) -> None:
        with self._guard:
            self._closed = True
            given_up = self._give_up()
        _unwant(given_up)

    def _go_on(self) -> None:
        """Have as many slots made at a time as may be."""
        while (slot := self._claim()) is not None:
            render = self._renderer.ahead(self._rendition, slot, partial(self._made, slot))
            with self._guard:
                if slot in self._making:
                    if render is None:
                        del self._making[slot]
                    else:
                        self._making[slot] = render
                        render = None
            _unwant([render])  # it is done, or was given up meanwhile

    def _made(self, slot: int) -> None:
        with self._guard:
            render = self._making.pop(slot, None)
        _unwant([render])
        self._go_on()

    def _give_up(self) -> list[Render | None]:
        """What is to be unwanted; to be called under the guard."""
        making, self._making = self._making, {}
        return list(making.values())

    def _claim(self) -> int | None:
        with self._guard:
            if self._closed or len(self._making) >= self._most or self._next >= self._limit():
                return None
            self._next += 1
            self._making[self._next - 1] = None
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


def _unwant(renders: Iterable[Render | None]) -> None:
    for render in renders:
        if render is not None:
            render.unwant()


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
            data = rendition.trimmed(slot, bytes(file.slot(slot)))
            out.write(data)
            sizes[slot - 1] = len(data)
            if on_progress is not None:
                on_progress(slots[slot].size)
    finally:
        file.close()
    out.seek(start)
    out.write(rendition.header_of(sizes))
    return int(out.seek(0, os.SEEK_END)) - start

"""Making renditions: slots are made when they are first read, once, and a little ahead."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import BinaryIO

import numpy as np

from vfsd.core.hostinfo import cores
from vfsd.core.view_file import Patience
from vfsd.derive.promotion_candidates import Candidates
from vfsd.disk.object_store import Progress
from vfsd.read.context import Tools
from vfsd.read.read_cost import Timing
from vfsd.storage.context import Parts
from vfsd.storage.file_cache import Bytes, FileCache, shown
from vfsd.views.context import Workshop
from vfsd.views.made_slots import MadeSlots
from vfsd.views.materialised import WholeViews
from vfsd.views.prefetch import Forerunner
from vfsd.views.rate_limiter import Turnstile
from vfsd.views.read_notes import SlotsRead
from vfsd.views.remote_render import MadeElsewhere
from vfsd.views.render_cache import MemoryCache, RenderCache
from vfsd.views.render_queue import Check, Lane, Render
from vfsd.views.rendered_view import PaddedRendition, Rendition, StillRendition, StreamedRendition
from vfsd.views.renderfacts import cache_name, keep_times

_MEMORY_BYTES = 64 << 20
_AHEAD_BYTES = 16 << 20
_AHEAD_KEPT_BYTES = 3 * _AHEAD_BYTES
"""The places of slots that are made beforehand are so large at most; those of slots which are kept
in files as well may be larger, and hardly ever are full."""
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
        elsewhere: MadeElsewhere | None = None,
        whole_bytes: int = 0,
        are_others_hurried: Callable[[], bool] = lambda: False,
    ) -> None:
        """Slots are made `elsewhere`, where that can be; whole files of views, for the kernel to
        read, may take up `whole_bytes`; while others are in a hurry, bytes are handed out with
        breaks in between."""
        files = candidates = None
        if not parts.read_only:
            files = FileCache.of_store(parts)
            candidates = Candidates(files) if parts.settings.admit_views else None
        memory = parts.settings.decoder_memory // 2
        self.workshop = Workshop(tools, memory, parts.suspects, candidates)
        self._parts = parts
        self._reads = tools.reads
        self._cache = RenderCache(MemoryCache(_MEMORY_BYTES), files)
        self._made_slots = MadeSlots(self._is_in_cache)
        self._elsewhere = elsewhere
        self.turnstile = Turnstile(are_others_hurried)
        self.hands = encoders()  #: that make segments
        self._segments = Lane("encode", self.hands)
        self._pictures = Lane("render", DECODERS_A_CORE * cores())
        self._wholes = None
        if whole_bytes:
            self._wholes = WholeViews(parts.directory.cache, whole_bytes, self.slot)

    def slot(self, rendition: Rendition, slot: int, patience: Patience | None = None) -> Bytes:
        """The bytes of a slot, without the zeros that fill it up.

        Raises what `patience` does, which is asked now and then while this takes long.
        """
        return self._cache.get(
            cache_name(rendition, slot),
            partial(self._make, rendition, slot),
            self._lane(rendition, slot),
            keep=slot in rendition.storable,
            patience=patience,
        )

    def ahead(self, rendition: Rendition, slot: int, then: Callable[[], None]) -> Render | None:
        """Have a slot made; see `RenderCache.ahead`."""
        return self._cache.ahead(
            cache_name(rendition, slot),
            partial(self._make, rendition, slot),
            self._lane(rendition, slot),
            then,
            keep=slot in rendition.storable,
        )

    def _make(self, rendition: Rendition, slot: int, check: Check) -> Bytes:
        if slot in rendition.storable:
            self._made_slots.forget(rendition)
        if self._elsewhere is not None:
            made = self._elsewhere.make(rendition, slot, check)
            if made is not None:
                return made
        return rendition.make(slot, self.workshop.checked(check))

    def _is_in_cache(self, rendition: Rendition, slot: int) -> bool:
        return self._cache.has(cache_name(rendition, slot))

    def _lane(self, rendition: Rendition, slot: int) -> Lane:
        is_segment = slot in rendition.storable and not isinstance(rendition, StillRendition)
        return self._segments if is_segment else self._pictures

    def measured(self, still: StillRendition) -> StillRendition:
        """A JPEG, with its size; it is made for that, unless it was before."""
        return still.of_size(len(self.slot(still, 1)))

    def is_made(self, rendition: Rendition) -> bool:
        """Whether all that takes work is in the cache, as far as anybody has looked."""
        return self._made_slots.are_all_of(rendition)

    def note(self, rendition: Rendition, read: SlotsRead, timing: Timing) -> None:
        """Remember that somebody has read those slots."""
        slots = read.sorted()
        pictures = rendition.pictures(slots) if slots else None
        if pictures is not None:
            self._reads.note(pictures.footage.digest, partial(pictures.account, timing))

    def whole(self, rendition: Rendition) -> int | None:
        """A descriptor, the caller's own, of a file with just its bytes, if there is one."""
        return None if self._wholes is None else self._wholes.open(rendition.key)

    def was_read(self, rendition: Rendition, read: SlotsRead) -> None:
        """Somebody has read those slots, and is done."""
        self._made_slots.look(rendition)
        if self._wholes is not None and read.is_all_of(len(rendition.slots)):
            self._wholes.want(rendition)

    def cool(self, seconds: float) -> None:
        """See `Workshop.cool`; what shows videos that have gone goes, too."""
        self.workshop.cool(seconds)
        keep_times(self._parts, self.workshop.times)
        held = self._cache.digests()
        if self._wholes is not None:
            held |= self._wholes.digests()
        gone = held - shown(self._parts, held) if held else set()
        if gone:
            self._cache.forget(gone)
            if self._wholes is not None:
                self._wholes.forget(gone)

    def close(self) -> None:
        if self._wholes is not None:
            self._wholes.close()
        self._segments.close()
        self._pictures.close()
        keep_times(self._parts, self.workshop.times)
        self.workshop.close()


class RenditionFile:
    """A rendition, open for reading.  Safe to use from several threads."""

    def __init__(self, renderer: Renderer, rendition: Rendition) -> None:
        self._renderer = renderer
        self._rendition = rendition
        self._slots = rendition.slots
        is_kept = bool(rendition.storable)
        self._runner = Forerunner(
            self._slots,
            partial(renderer.ahead, rendition),
            # Decoding alone goes on where the last slot ended.
            hands=renderer.hands if is_kept else 1,
            most_bytes=_AHEAD_KEPT_BYTES if is_kept else _AHEAD_BYTES,
        )
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

    @property
    def is_work(self) -> bool:
        """Whether something has to be computed for it."""
        return self._rendition.is_work and not self._renderer.is_made(self._rendition)

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
            part = np.frombuffer(data, np.uint8)[within : within + count]
            with self._renderer.turnstile.turn(count):
                # By numpy, which lets others compute meanwhile.
                target[done : done + len(part)] = part
                target[done + len(part) : done + count] = 0
            done += count
        self._waited += time.perf_counter() - began
        return done

    def read_on(self, slot: int) -> None:
        """All slots from `slot` on will be read, one after the other: they are made from now on."""
        self._runner.begin(slot)

    def slot(self, slot: int) -> Bytes:
        """The bytes of a slot, without the zeros that fill it up.  Raises as `readinto` does."""
        self._runner.asked_for(slot, slot)
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


def write_out(
    renderer: Renderer, rendition: Rendition, out: BinaryIO, on_progress: Progress | None = None
) -> int:
    """Write the whole file that a rendition is; how many bytes that were.

    Where `out` is seekable, it gets the same without padding.  `on_progress` is called with the
    number of bytes of the padded file that are done since the last call.
    """
    if isinstance(rendition, PaddedRendition) and out.seekable():
        return _write_trimmed(renderer, rendition, out, on_progress)
    if isinstance(rendition, StreamedRendition):
        return _write_streamed(renderer, rendition, out, on_progress)
    file = RenditionFile(renderer, rendition)
    buffer = memoryview(bytearray(_CHUNK))
    at = 0
    try:
        file.read_on(0)
        while count := file.readinto(buffer, at):
            out.write(buffer[:count])
            at += count
            if on_progress is not None:
                on_progress(count)
    finally:
        file.close()
    return at


def _write_streamed(
    renderer: Renderer,
    rendition: StreamedRendition,
    out: BinaryIO,
    on_progress: Progress | None,
) -> int:
    """With no cache in between, as nobody else waits."""
    opened_ns, resumed, seconds = time.time_ns(), time.perf_counter(), 0.0
    read = SlotsRead()
    size = 0
    try:
        with closing(rendition.stream(renderer.workshop)) as stream:
            for slot, data in enumerate(stream):
                seconds += time.perf_counter() - resumed
                out.write(data)
                read.add(slot)
                size += len(data)
                if on_progress is not None:
                    on_progress(len(data))
                resumed = time.perf_counter()
    finally:
        renderer.note(rendition, read, Timing(opened_ns, seconds))
    return size


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
        file.read_on(1)
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

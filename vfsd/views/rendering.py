"""`Renderer` renders slots when they are first read; `RenderedViewFile` is an open view.

A `Prefetcher` renders the next slots of sequential readers, and a `RateLimiter` spaces out large
reads while others wait.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import BinaryIO

import numpy as np

from vfsd.core.hostinfo import available_cores
from vfsd.core.view_request import CancelCheck
from vfsd.derive.promotion_candidates import CandidateIndex
from vfsd.disk.object_store import Progress
from vfsd.read.read_context import ReadContext
from vfsd.read.read_log import ReadTiming
from vfsd.storage.context import StoreContext
from vfsd.storage.file_cache import Bytes, FileCache, shown
from vfsd.views.cached_views import (
    CachedSlotCounts,
    MaterialisedViews,
    cached_slot_name,
    store_encode_times,
)
from vfsd.views.remote_render import RemoteViews
from vfsd.views.render_cache import Checkpoint, MemoryCache, RenderCache, RenderPool, RenderTask
from vfsd.views.render_context import RenderContext
from vfsd.views.rendered_view import PaddedView, RenderedView, StillView, StreamableView
from vfsd.views.view_slots import SlotReadLog, Slots

# Without breaks, one copy at a time or smaller requests did not help: 4 KiB reads next to four raw
# views took 0.4 to 1.6 ms in the slowest hundredth, with breaks 0.3 to 0.6 ms.
_BYTES_PER_SECOND = 1.25e9
"""Not more is handed out meanwhile: 200 pictures of 1080p, as RGB."""
_MIN_PAUSE_SECONDS = 50e-6
"""A shorter break would be over before anybody could use it, and is added to the next one."""


class RateLimiter:
    """Lets in one at a time, not too many bytes in a second, as long as that helps anybody."""

    def __init__(self, is_needed: Callable[[], bool]) -> None:
        self._is_needed = is_needed
        self._guard = threading.Lock()
        self._next = 0.0  # not before that time, as `time.perf_counter` has it

    @contextmanager
    def turn(self, count: int) -> Iterator[None]:
        """Hand out so many bytes within."""
        if not self._is_needed():
            yield
            return
        with self._guard:
            wait = self._next - time.perf_counter()
            if wait > _MIN_PAUSE_SECONDS:
                time.sleep(wait)
            yield
            self._next = max(self._next, time.perf_counter()) + count / _BYTES_PER_SECOND


# Players read the head and a second or two of pictures, then jump. Rendering too far ahead delays
# the segment that the player wants after its jump.
_MAX_PREFETCH_SLOTS = 8
"""As many slots after the one being read are made beforehand, at most."""

PrefetchSlot = Callable[[int, Callable[[], None]], RenderTask | None]
"""Has a slot made, and calls the other when it is; see `RenderCache.ahead`."""


class Prefetcher:
    """Makes the slots that a sequential reader will want next.  Thread-safe.

    At most twice as many as were read in a row before: who opens a file to look at its middle does
    not wait for what he will never read.
    """

    def __init__(self, slots: Slots, ahead: PrefetchSlot, *, hands: int, most_bytes: int) -> None:
        """At most `hands` slots are made at a time, and they have places for `most_bytes`."""
        self._slots = slots
        self._make = ahead
        self._hands = hands
        self._most_bytes = most_bytes
        self._guard = threading.Lock()
        self._begin = 0  # the first of the slots that are read in a row
        self._asked = -1  # the last of them that was asked for
        self._position = -1  # the last that was read
        self._next = 0  # the slot to be made next
        self._ahead = 0  # slots to be made after the position
        self._least = 0  # as many however few were read
        self._making: dict[int, RenderTask | None] = {}  # None: just begun
        self._closed = False

    def begin(self, slot: int) -> None:
        """All slots from `slot` on will be read, one after the other.  Before any was."""
        with self._guard:
            self._begin = self._next = slot
            self._position = self._asked = slot - 1
            self._ahead = self._least = _MAX_PREFETCH_SLOTS
        self._go_on()

    def asked_for(self, first: int, last: int) -> None:
        """The reader wants the slots ``first <= slot <= last``, none of which he has got yet.

        Where he has jumped, nothing more is made in the old place, as he waits for the new one.
        """
        given_up: list[RenderTask | None] = []
        with self._guard:
            if not self._begin <= first <= self._asked + 1:
                self._begin, self._position, self._asked = first, first - 1, last
                self._next, self._ahead, self._least = first + 1, 0, 0
                given_up = self._give_up()
            self._asked = max(self._asked, last)
        _release_tasks(given_up)

    def follow(self, slot: int) -> None:
        """The reader has got `slot`."""
        with self._guard:
            # What lies elsewhere was asked for before he jumped.
            if not self._position < slot <= self._asked or self._closed:
                return
            self._position = slot
            # The first two segments are what players look at to learn what is in a file.
            ahead = 2 * (slot - self._begin) if slot else 2
            self._ahead = min(_MAX_PREFETCH_SLOTS, max(self._least, ahead))
            self._next = max(self._next, slot + 1)
        self._go_on()

    def close(self) -> None:
        with self._guard:
            self._closed = True
            given_up = self._give_up()
        _release_tasks(given_up)

    def _go_on(self) -> None:
        """Have as many slots made at a time as may be."""
        while (slot := self._claim()) is not None:
            render = self._make(slot, partial(self._made, slot))
            with self._guard:
                if slot in self._making:
                    if render is None:
                        del self._making[slot]
                    else:
                        self._making[slot] = render
                        render = None
            _release_tasks([render])  # it is done, or was given up meanwhile

    def _made(self, slot: int) -> None:
        with self._guard:
            render = self._making.pop(slot, None)
        _release_tasks([render])
        self._go_on()

    def _give_up(self) -> list[RenderTask | None]:
        """What is to be unwanted; to be called under the guard."""
        making, self._making = self._making, {}
        return list(making.values())

    def _claim(self) -> int | None:
        with self._guard:
            if self._closed or len(self._making) >= self._hands or self._next >= self._limit():
                return None
            self._next += 1
            self._making[self._next - 1] = None
            return self._next - 1

    def _limit(self) -> int:
        """The slot before which to stop."""
        slots, first = self._slots, self._position + 1
        stop = first
        size = 0
        while stop < min(len(slots), first + self._ahead):
            size += slots[stop].size
            if size > self._most_bytes:
                break
            stop += 1
        return stop


def _release_tasks(renders: Iterable[RenderTask | None]) -> None:
    for render in renders:
        if render is not None:
            render.unwant()


_MEMORY_BYTES = 64 << 20
_PREFETCH_BYTES = 16 << 20
_PREFETCH_CACHED_BYTES = 3 * _PREFETCH_BYTES
"""The places of slots that are made beforehand are so large at most; those of slots which are kept
in files as well may be larger, and hardly ever are full."""
_CHUNK = 1 << 20
_MIN_ENCODERS, _MAX_ENCODERS = 2, 16
_EXTRA_ENCODERS = 1
"""More than there are cores: one decodes, or reads from a disk, while the others encode."""
DECODERS_PER_CORE = 2
"""So many single pictures are made at a time: some wait for a disk, or for each other."""


def encoder_threads() -> int:
    """How many segments are made at a time."""
    return max(_MIN_ENCODERS, min(available_cores(), _MAX_ENCODERS)) + _EXTRA_ENCODERS


class Renderer:
    """What all renditions of a process share: tools, caches, threads.  Thread-safe."""

    def __init__(
        self,
        parts: StoreContext,
        tools: ReadContext,
        elsewhere: RemoteViews | None = None,
        whole_bytes: int = 0,
        are_others_hurried: Callable[[], bool] = lambda: False,
    ) -> None:
        """Slots are made `elsewhere`, where that can be; whole files of views, for the kernel to
        read, may take up `whole_bytes`; while others are in a hurry, bytes are handed out with
        breaks in between."""
        files = candidates = None
        if not parts.read_only:
            files = FileCache.of_store(parts)
            candidates = CandidateIndex(files) if parts.settings.admit_views else None
        memory = parts.settings.decoder_memory // 2
        self.workshop = RenderContext(tools, memory, parts.suspects, candidates)
        self._parts = parts
        self._reads = tools.reads
        self._cache = RenderCache(MemoryCache(_MEMORY_BYTES), files)
        self._made_slots = CachedSlotCounts(self._is_in_cache)
        self._elsewhere = elsewhere
        self.turnstile = RateLimiter(are_others_hurried)
        self.hands = encoder_threads()  #: that make segments
        self._segments = RenderPool("encode", self.hands)
        self._pictures = RenderPool("render", DECODERS_PER_CORE * available_cores())
        self._wholes = None
        if whole_bytes:
            self._wholes = MaterialisedViews(parts.directory.cache, whole_bytes, self.slot)

    def slot(
        self, rendition: RenderedView, slot: int, patience: CancelCheck | None = None
    ) -> Bytes:
        """The bytes of a slot, without the zeros that fill it up.

        Raises what `patience` does, which is asked now and then while this takes long.
        """
        return self._cache.get(
            cached_slot_name(rendition, slot),
            partial(self._make, rendition, slot),
            self._lane(rendition, slot),
            keep=slot in rendition.storable,
            patience=patience,
        )

    def ahead(
        self, rendition: RenderedView, slot: int, then: Callable[[], None]
    ) -> RenderTask | None:
        """Have a slot made; see `RenderCache.ahead`."""
        return self._cache.ahead(
            cached_slot_name(rendition, slot),
            partial(self._make, rendition, slot),
            self._lane(rendition, slot),
            then,
            keep=slot in rendition.storable,
        )

    def _make(self, rendition: RenderedView, slot: int, check: Checkpoint) -> Bytes:
        if slot in rendition.storable:
            self._made_slots.forget(rendition)
        if self._elsewhere is not None:
            made = self._elsewhere.make(rendition, slot, check)
            if made is not None:
                return made
        return rendition.make(slot, self.workshop.checked(check))

    def _is_in_cache(self, rendition: RenderedView, slot: int) -> bool:
        return self._cache.has(cached_slot_name(rendition, slot))

    def _lane(self, rendition: RenderedView, slot: int) -> RenderPool:
        is_segment = slot in rendition.storable and not isinstance(rendition, StillView)
        return self._segments if is_segment else self._pictures

    def measured(self, still: StillView) -> StillView:
        """A JPEG, with its size; it is made for that, unless it was before."""
        return still.of_size(len(self.slot(still, 1)))

    def is_made(self, rendition: RenderedView) -> bool:
        """Whether all that takes work is in the cache, as far as anybody has looked."""
        return self._made_slots.are_all_of(rendition)

    def note(self, rendition: RenderedView, read: SlotReadLog, timing: ReadTiming) -> None:
        """Remember that somebody has read those slots."""
        slots = read.sorted()
        pictures = rendition.pictures(slots) if slots else None
        if pictures is not None:
            self._reads.note(pictures.footage.digest, partial(pictures.account, timing))

    def whole(self, rendition: RenderedView) -> int | None:
        """A descriptor, the caller's own, of a file with just its bytes, if there is one."""
        return None if self._wholes is None else self._wholes.open(rendition.key)

    def was_read(self, rendition: RenderedView, read: SlotReadLog) -> None:
        """Somebody has read those slots, and is done."""
        self._made_slots.look(rendition)
        if self._wholes is not None and read.is_all_of(len(rendition.slots)):
            self._wholes.want(rendition)

    def cool(self, seconds: float) -> None:
        """See `RenderContext.cool`; what shows videos that have gone goes, too."""
        self.workshop.cool(seconds)
        store_encode_times(self._parts, self.workshop.times)
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
        store_encode_times(self._parts, self.workshop.times)
        self.workshop.close()


class RenderedFile:
    """A rendition, open for reading.  Safe to use from several threads."""

    def __init__(self, renderer: Renderer, rendition: RenderedView) -> None:
        self._renderer = renderer
        self._rendition = rendition
        self._slots = rendition.slots
        is_kept = bool(rendition.storable)
        self._runner = Prefetcher(
            self._slots,
            partial(renderer.ahead, rendition),
            # Decoding alone goes on where the last slot ended.
            hands=renderer.hands if is_kept else 1,
            most_bytes=_PREFETCH_CACHED_BYTES if is_kept else _PREFETCH_BYTES,
        )
        self._whole = renderer.whole(rendition)
        self._opened_ns = time.time_ns()
        self._waited = 0.0
        self._read = SlotReadLog()

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

    def readinto(self, buffer: memoryview, offset: int, patience: CancelCheck | None = None) -> int:
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
        self._renderer.note(self._rendition, self._read, ReadTiming(self._opened_ns, self._waited))


def write_view(
    renderer: Renderer, rendition: RenderedView, out: BinaryIO, on_progress: Progress | None = None
) -> int:
    """Write the whole file that a rendition is; how many bytes that were.

    Where `out` is seekable, it gets the same without padding.  `on_progress` is called with the
    number of bytes of the padded file that are done since the last call.
    """
    if isinstance(rendition, PaddedView) and out.seekable():
        return _write_trimmed(renderer, rendition, out, on_progress)
    if isinstance(rendition, StreamableView):
        return _write_streamed(renderer, rendition, out, on_progress)
    file = RenderedFile(renderer, rendition)
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
    rendition: StreamableView,
    out: BinaryIO,
    on_progress: Progress | None,
) -> int:
    """With no cache in between, as nobody else waits."""
    opened_ns, resumed, seconds = time.time_ns(), time.perf_counter(), 0.0
    read = SlotReadLog()
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
        renderer.note(rendition, read, ReadTiming(opened_ns, seconds))
    return size


def _write_trimmed(
    renderer: Renderer, rendition: PaddedView, out: BinaryIO, on_progress: Progress | None
) -> int:
    """The header comes last: it tells where the segments are."""
    file = RenderedFile(renderer, rendition)
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

"""`Renderer` renders slots when they are first read; `RenderedFile` is an open view.

`RemoteViews` renders slots in another process, into shared memory; `SlotRenderer` is the other
side.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from vfsd.core.process_control import available_cores
from vfsd.core.view_request import CancelCheck
from vfsd.errors import NotFoundError
from vfsd.read.read_context import ReadContext
from vfsd.read.read_log import ReadTiming
from vfsd.storage.context import StoreContext
from vfsd.storage.file_cache import Bytes, FileCache, digests_in_use
from vfsd.views.render_cache import (
    CachedSlotCounts,
    MaterialisedViews,
    MemoryCache,
    RenderCache,
    RenderPool,
    RenderTask,
    cached_slot_name,
    store_encode_times,
)
from vfsd.views.render_context import ByteBuffer, Checkpoint, RenderContext
from vfsd.views.rendered_view import InPlaceView, RenderedView, StillView
from vfsd.views.view_resolver import RecentViews, ViewResolver
from vfsd.views.view_slots import SlotReadLog, Slots

# Limit while other reads wait: 200 pictures of 1080p, as RGB.
# Pauses, one copy at a time, cut the slowest hundredth of 4 KiB reads next to four raw views from
# 0.4 to 1.6 ms down to 0.3 to 0.6 ms.  Smaller requests, or one copy at a time without pauses, did
# not help.
_BYTES_PER_SECOND = 1.25e9
# A shorter pause would end before another thread could run; it is added to the next one.
_MIN_PAUSE_SECONDS = 50e-6
# Number of slots that are rendered ahead of the reader, at most.
# Players read the head and a second or two of pictures, then jump. Rendering too far ahead delays
# the segment that the player wants after its jump.
_MAX_PREFETCH_SLOTS = 8
_MEMORY_BYTES = 64 << 20
_PREFETCH_BYTES = 16 << 20
# Slot sizes that are prefetched at most.  Cached slots may be larger, because they are rarely full.
_PREFETCH_CACHED_BYTES = 3 * _PREFETCH_BYTES
_MIN_ENCODERS, _MAX_ENCODERS = 2, 16
# More than the number of cores: one thread decodes or reads while the others encode.
_EXTRA_ENCODERS = 1
DECODERS_PER_CORE = 2
"""Single pictures rendered at a time: some wait for the disk or for each other."""


class RateLimiter:
    """Serialises large copies and limits their bytes per second while other reads wait."""

    def __init__(self, is_needed: Callable[[], bool]) -> None:
        self._is_needed = is_needed
        self._guard = threading.Lock()
        self._next = 0.0  # earliest start, by `time.perf_counter`

    @contextmanager
    def limit(self, count: int) -> Iterator[None]:
        """Copy `count` bytes within the block."""
        if not self._is_needed():
            yield
            return
        with self._guard:
            wait = self._next - time.perf_counter()
            if wait > _MIN_PAUSE_SECONDS:
                time.sleep(wait)
            yield
            self._next = max(self._next, time.perf_counter()) + count / _BYTES_PER_SECOND


PrefetchSlot = Callable[[int, Callable[[], None]], RenderTask | None]
"""Starts to render a slot and calls the callback when it is done; see `RenderCache.prefetch`."""


class Prefetcher:
    """Renders the slots that a sequential reader will need next.  Thread-safe.

    It stays at most twice as many slots ahead as were read in sequence, so that a reader who only
    looks at the middle of a file does not wait for slots that are never read.
    """

    def __init__(
        self, slots: Slots, ahead: PrefetchSlot, *, max_running: int, most_bytes: int
    ) -> None:
        """Render at most `max_running` slots at a time, of `most_bytes` in total."""
        self._slots = slots
        self._make = ahead
        self._max_running = max_running
        self._most_bytes = most_bytes
        self._guard = threading.Lock()
        self._begin = 0  # first slot of the sequential run
        self._asked = -1  # last slot of the run that was requested
        self._position = -1  # last slot that was read
        self._next = 0  # next slot to render
        self._ahead = 0  # slots to render after the position
        self._least = 0  # lower limit of `_ahead`
        self._making: dict[int, RenderTask | None] = {}  # None while the task is being submitted
        self._closed = False

    def start_at(self, slot: int) -> None:
        """Prepare for a sequential read of all slots from `slot` on.  Call it before the first
        read.
        """
        with self._guard:
            self._begin = self._next = slot
            self._position = self._asked = slot - 1
            self._ahead = self._least = _MAX_PREFETCH_SLOTS
        self._start_tasks()

    def note_request(self, first: int, last: int) -> None:
        """Note that the reader requests the slots ``first <= slot <= last``.

        After a jump nothing more is rendered at the old position, because the reader waits for the
        new one.
        """
        given_up: list[RenderTask | None] = []
        with self._guard:
            if not self._begin <= first <= self._asked + 1:
                self._begin, self._position, self._asked = first, first - 1, last
                self._next, self._ahead, self._least = first + 1, 0, 0
                given_up = self._take_tasks()
            self._asked = max(self._asked, last)
        _release_tasks(given_up)

    def note_received(self, slot: int) -> None:
        """Note that the reader has received `slot`."""
        with self._guard:
            # A slot outside this range was requested before a jump.
            if not self._position < slot <= self._asked or self._closed:
                return
            self._position = slot
            # Players read the first two segments to find out what a file contains.
            ahead = 2 * (slot - self._begin) if slot else 2
            self._ahead = min(_MAX_PREFETCH_SLOTS, max(self._least, ahead))
            self._next = max(self._next, slot + 1)
        self._start_tasks()

    def close(self) -> None:
        with self._guard:
            self._closed = True
            given_up = self._take_tasks()
        _release_tasks(given_up)

    def _start_tasks(self) -> None:
        """Start rendering up to the allowed number of slots."""
        while (slot := self._next_slot()) is not None:
            render = self._make(slot, partial(self._made, slot))
            with self._guard:
                if slot in self._making:
                    if render is None:
                        del self._making[slot]
                    else:
                        self._making[slot] = render
                        render = None
            _release_tasks([render])  # it is done, or was cancelled in the meantime

    def _made(self, slot: int) -> None:
        with self._guard:
            render = self._making.pop(slot, None)
        _release_tasks([render])
        self._start_tasks()

    def _take_tasks(self) -> list[RenderTask | None]:
        """Return the tasks to release; the caller holds the lock."""
        making, self._making = self._making, {}
        return list(making.values())

    def _next_slot(self) -> int | None:
        with self._guard:
            if (
                self._closed
                or len(self._making) >= self._max_running
                or self._next >= self._limit()
            ):
                return None
            self._next += 1
            self._making[self._next - 1] = None
            return self._next - 1

    def _limit(self) -> int:
        """Return the slot to stop before."""
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
            render.remove_reader()


def encoder_threads() -> int:
    """Return the number of segments that are rendered at a time."""
    return max(_MIN_ENCODERS, min(available_cores(), _MAX_ENCODERS)) + _EXTRA_ENCODERS


class Renderer:
    """The context, caches and threads that all views of a process share.  Thread-safe."""

    def __init__(
        self,
        parts: StoreContext,
        tools: ReadContext,
        remote: RemoteViews | None = None,
        whole_bytes: int = 0,
        are_reads_waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        """Set up the caches and thread pools.

        Args:
            remote: renders slots in another process if possible.
            whole_bytes: limit for views that are kept as whole files for the kernel.
            are_reads_waiting: tests whether other reads wait, so that large copies are
                rate-limited.
        """
        files = None if parts.read_only else FileCache.of_store(parts)
        self.context = RenderContext(parts, tools, files)
        self._parts = parts
        self._reads = tools.read_log
        self._cache = RenderCache(MemoryCache(_MEMORY_BYTES), files)
        self._cached_slots = CachedSlotCounts(self._is_in_cache)
        self._remote = remote
        self.rate_limiter = RateLimiter(are_reads_waiting)
        self.encoder_count = encoder_threads()  #: threads that render segments
        self._segments = RenderPool("encode", self.encoder_count)
        self._pictures = RenderPool("render", DECODERS_PER_CORE * available_cores())
        self._materialised = None
        if whole_bytes:
            self._materialised = MaterialisedViews(parts.directory.cache, whole_bytes, self.slot)

    def slot(
        self, rendered: RenderedView, slot: int, cancel_check: CancelCheck | None = None
    ) -> Bytes:
        """Return the bytes of a slot without its zero padding.

        Raises what `cancel_check` raises, which is called now and then while this takes long.
        """
        return self._cache.get(
            cached_slot_name(rendered, slot),
            partial(self._make, rendered, slot),
            self._pool_for(rendered, slot),
            keep=slot in rendered.storable,
            cancel_check=cancel_check,
        )

    def prefetch(
        self, rendered: RenderedView, slot: int, then: Callable[[], None]
    ) -> RenderTask | None:
        """Start to render a slot; see `RenderCache.prefetch`."""
        return self._cache.prefetch(
            cached_slot_name(rendered, slot),
            partial(self._make, rendered, slot),
            self._pool_for(rendered, slot),
            then,
            keep=slot in rendered.storable,
        )

    def _make(self, rendered: RenderedView, slot: int, check: Checkpoint) -> Bytes:
        if slot in rendered.storable:
            self._cached_slots.forget(rendered)
        if self._remote is not None:
            made = self._remote.make(rendered, slot, check)
            if made is not None:
                return made
        return rendered.make(slot, self.context.checked(check))

    def _is_in_cache(self, rendered: RenderedView, slot: int) -> bool:
        return self._cache.has(cached_slot_name(rendered, slot))

    def _pool_for(self, rendered: RenderedView, slot: int) -> RenderPool:
        is_segment = slot in rendered.storable and not isinstance(rendered, StillView)
        return self._segments if is_segment else self._pictures

    def measured(self, still: StillView) -> StillView:
        """Return a JPEG view with its size, encoding it if it is not cached."""
        return still.of_size(len(self.slot(still, 1)))

    def is_made(self, rendered: RenderedView) -> bool:
        """Return whether all slots that take work were cached when last checked."""
        return self._cached_slots.is_complete(rendered)

    def note(self, rendered: RenderedView, read: SlotReadLog, timing: ReadTiming) -> None:
        """Add a read of these slots to the read log."""
        slots = read.sorted()
        pictures = rendered.pictures(slots) if slots else None
        if pictures is not None:
            self._reads.note(pictures.source.digest, partial(pictures.log_entry, timing))

    def whole(self, rendered: RenderedView) -> int | None:
        """Return a new descriptor of a file with exactly the bytes of the view, or None."""
        return None if self._materialised is None else self._materialised.open(rendered.key)

    def reader_closed(self, rendered: RenderedView, read: SlotReadLog) -> None:
        """Update the caches after a reader of these slots has closed the view."""
        self._cached_slots.refresh(rendered)
        if self._materialised is not None and read.covers(len(rendered.slots)):
            self._materialised.request(rendered)

    def evict_idle(self, seconds: float) -> None:
        """See `RenderContext.evict_idle`; also drops cached bytes of videos that were removed."""
        self.context.evict_idle(seconds)
        store_encode_times(self._parts, self.context.times)
        held = self._cache.digests()
        if self._materialised is not None:
            held |= self._materialised.digests()
        gone = held - digests_in_use(self._parts, held) if held else set()
        if gone:
            self._cache.forget(gone)
            if self._materialised is not None:
                self._materialised.forget(gone)

    def close(self) -> None:
        if self._materialised is not None:
            self._materialised.close()
        self._segments.close()
        self._pictures.close()
        store_encode_times(self._parts, self.context.times)
        self.context.close()


class RenderedFile:
    """A view that is open for reading.  Thread-safe."""

    def __init__(self, renderer: Renderer, rendered: RenderedView) -> None:
        self._renderer = renderer
        self._rendered = rendered
        self._slots = rendered.slots
        is_kept = bool(rendered.storable)
        self._prefetcher = Prefetcher(
            self._slots,
            partial(renderer.prefetch, rendered),
            # A decoder without an encoder continues where the last slot ended.
            max_running=renderer.encoder_count if is_kept else 1,
            most_bytes=_PREFETCH_CACHED_BYTES if is_kept else _PREFETCH_BYTES,
        )
        self._whole = renderer.whole(rendered)
        self._opened_ns = time.time_ns()
        self._waited = 0.0
        self._read = SlotReadLog()

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self._slots.size

    @property
    def version(self) -> str:
        """Identifies the bytes of the file."""
        return self._rendered.key

    @property
    def whole(self) -> int | None:
        """A descriptor of a file with exactly these bytes, or None; valid until `close`."""
        return self._whole

    @property
    def is_work(self) -> bool:
        """Whether a read may have to compute something."""
        return self._rendered.is_work and not self._renderer.is_made(self._rendered)

    def readinto(
        self, buffer: memoryview, offset: int, cancel_check: CancelCheck | None = None
    ) -> int:
        """Fill `buffer` from `offset` on and return the number of bytes.

        The number is smaller than requested only at the end of the file.  Raises `IntegrityError`,
        `OSError`, and what `cancel_check` raises, which is called periodically during long work.
        """
        target = np.frombuffer(buffer, np.uint8)
        began = time.perf_counter()
        wanted = max(0, min(len(buffer), self.size - offset))
        if wanted:
            first, last = self._slots.at(offset), self._slots.at(offset + wanted - 1)
            self._prefetcher.note_request(first.slot, last.slot)
        done = 0
        while done < wanted:
            place = self._slots.at(offset + done)
            within = offset + done - place.start
            count = min(wanted - done, place.size - within)
            data = self._renderer.slot(self._rendered, place.slot, cancel_check)
            self._read.add(place.slot)
            self._prefetcher.note_received(place.slot)
            part = np.frombuffer(data, np.uint8)[within : within + count]
            with self._renderer.rate_limiter.limit(count):
                # Numpy releases the GIL while it copies.
                target[done : done + len(part)] = part
                target[done + len(part) : done + count] = 0
            done += count
        self._waited += time.perf_counter() - began
        return done

    def read_sequentially(self, slot: int) -> None:
        """Prepare for a sequential read of all slots from `slot` on."""
        self._prefetcher.start_at(slot)

    def slot(self, slot: int) -> Bytes:
        """Return the bytes of a slot without its zero padding.  Raises as `readinto` does."""
        self._prefetcher.note_request(slot, slot)
        began = time.perf_counter()
        data = self._renderer.slot(self._rendered, slot)
        self._read.add(slot)
        self._prefetcher.note_received(slot)
        self._waited += time.perf_counter() - began
        return data

    def close(self) -> None:
        self._prefetcher.close()
        if self._whole is not None:
            os.close(self._whole)
            self._whole = None
        self._renderer.reader_closed(self._rendered, self._read)
        self._renderer.note(self._rendered, self._read, ReadTiming(self._opened_ns, self._waited))


class HeldFile(RenderedFile):
    """An open view that runs a cleanup when it is closed."""

    def __init__(self, renderer: Renderer, rendered: RenderedView, until_closed: ExitStack) -> None:
        """Take over the cleanup that `until_closed` has collected."""
        super().__init__(renderer, rendered)
        self._until_closed = until_closed.pop_all()

    def close(self) -> None:
        with self._until_closed:
            super().close()


class SlotRequest(NamedTuple):
    """A slot to render, in terms that a process without the view can resolve."""

    ino: int  #: of the video
    path: str  #: below ``NAME@/``
    key: str  #: of the view expected at that path
    slot: int
    room: int  #: bytes of the slot in its file; 0 for any number


class RemoteRenderer(Protocol):
    """Renders slots elsewhere.  Thread-safe."""

    def make(self, request: SlotRequest, check: Checkpoint) -> Bytes | None:
        """Return the bytes of a slot without its zero padding.

        None means that the path now has another view, or that no render process is left.  Raises as
        `RenderedView.make` does, and what `check` raises, which is called now and then.
        """


class RemoteViews:
    """Views whose slots a `RemoteRenderer` renders.  Thread-safe."""

    def __init__(self, remote: RemoteRenderer) -> None:
        self._remote = remote
        self._places: WeakKeyDictionary[RenderedView, tuple[int, str]] = WeakKeyDictionary()

    def add(self, rendered: RenderedView, ino: int, path: str) -> None:
        """Register the inode of the video and the path of a view."""
        self._places[rendered] = (ino, path)

    def make(self, rendered: RenderedView, slot: int, check: Checkpoint) -> Bytes | None:
        """Return a slot of a view; None if it has to be rendered in this process."""
        place = self._places.get(rendered)
        # The first slot is a header, which is cheaper to compute than to request.
        if place is None or not slot:
            return None
        room = rendered.slots[slot].size
        return self._remote.make(SlotRequest(*place, rendered.key, slot, room), check)


AllocateBuffer = Callable[[int], ByteBuffer]
"""Returns memory for a number of bytes; called at most once."""


class SlotRenderer:
    """Renders slots of the views of a store without caching them.  Thread-safe."""

    def __init__(self, parts: StoreContext, tools: ReadContext) -> None:
        files = None if parts.read_only else FileCache.of_store(parts)
        self._context = RenderContext(parts, tools, files)
        self._parts = parts
        self._resolver = ViewResolver(parts, tools, lambda rendered, _ino, _path: rendered)
        self._views = RecentViews[str]()  # by key

    def make(self, request: SlotRequest, check: Checkpoint, place: AllocateBuffer) -> int | None:
        """Render a slot into memory from `place` and return its number of bytes.

        None means that the path has another view than requested.  Raises as `RenderedView.make`
        does, and what `check` and `place` raise.
        """
        rendered = self._view_at(request)
        if rendered is None or not request.slot < len(rendered.slots):
            return None
        context = self._context.checked(check)
        if isinstance(rendered, InPlaceView):
            size = rendered.slots[request.slot].size
            if size:
                rendered.fill(request.slot, context, place(size))
            return size
        data = np.frombuffer(rendered.make(request.slot, context), np.uint8)
        if len(data):
            place(len(data))[:] = data
        return len(data)

    def evict_idle(self, seconds: float) -> None:
        """See `RenderContext.evict_idle`."""
        self._context.evict_idle(seconds)
        store_encode_times(self._parts, self._context.times)

    def close(self) -> None:
        self._context.close()
        self._resolver.close()

    def _view_at(self, request: SlotRequest) -> RenderedView | None:
        """Return the requested view; an open file keeps its view even if the path has another one
        by now.
        """
        found = self._views.get(request.key)
        if found is None:
            try:
                found = self._resolver.resolve(*self._resolver.locate(request.ino, request.path))
            except NotFoundError:
                return None  # the video was removed or replaced
            if found.key != request.key:
                return None
            self._views.put(request.key, found)
        return found

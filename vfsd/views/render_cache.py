"""Renders each slot once, for any number of readers, and keeps the results.

`RenderPool` runs `RenderTask`s and cancels those without readers. `RenderCache` keeps slots in
memory and in files, `MaterialisedViews` keeps whole views as files that the kernel can read.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from vfsd.core.process_control import host_name, reset_after_fork
from vfsd.core.view_request import CancelCheck
from vfsd.errors import VfsdError
from vfsd.storage.context import StoreContext
from vfsd.storage.file_cache import Bytes, FileCache, cache_file_name
from vfsd.views.render_context import Checkpoint, EncodeTimes
from vfsd.views.rendered_view import PlannedView, RenderedView
from vfsd.views.transcode import TranscodedView

_log = logging.getLogger(__name__)

_CLOSE_SECONDS = 10.0
# A waiting reader calls its cancel check this often.
_POLL_SECONDS = 0.1
# Fewer pixels are not a reliable measurement.  One second of 640x360 has 7 million.
_MIN_PIXELS = 5_000_000
# Each file uses a descriptor.
_MAX_OPEN = 256
# Buffer size for writing, because the slots of short views are small.
_COPY_BYTES = 1 << 20


class RenderCancelledError(Exception):
    """The last reader of the bytes being rendered has gone."""


class RenderTask:
    """Bytes that are rendered once for all their readers.  Thread-safe.

    A finished task without data or error was cancelled, and a reader has to submit a new one.
    """

    def __init__(
        self, work: Callable[[Checkpoint], bytes | memoryview], then: Callable[[RenderTask], None]
    ) -> None:
        """`then` is called when the task is done, before its readers are notified."""
        self.data: bytes | memoryview | None = None
        self.error: Exception | None = None
        self._work = work
        self._done = threading.Event()
        self._guard = threading.Lock()
        self._wants = 0
        self._waiting = 0
        self._first = then
        self._then: list[Callable[[], None]] = []

    @property
    def has_waiting_reader(self) -> bool:
        return self._waiting > 0

    def add_reader(self, then: Callable[[], None] | None = None) -> bool:
        """Register a reader until `remove_reader`; return False if the task is already done.

        `then` is called when the task is done, by the thread that ran it.
        """
        with self._guard:
            if self._done.is_set():
                return False
            self._wants += 1
            if then is not None:
                self._then.append(then)
            return True

    def remove_reader(self) -> None:
        with self._guard:
            self._wants -= 1

    def wait(self, cancel_check: CancelCheck | None) -> None:
        """Return when the task is done.  Raises what `cancel_check` raises."""
        with self._guard:
            self._waiting += 1
        try:
            if cancel_check is None:
                self._done.wait()
                return
            while not self._done.wait(_POLL_SECONDS):
                cancel_check()
        finally:
            with self._guard:
                self._waiting -= 1

    def check(self) -> None:
        """Raises `RenderCancelledError` if the task has no readers."""
        if self._wants <= 0:
            raise RenderCancelledError

    def run(self) -> None:
        """Render the bytes unless the task has no readers.  Raises nothing."""
        try:
            self.check()
            self.data = self._work(self.check)
        except RenderCancelledError:
            pass
        except Exception as error:
            self.error = error
        finally:
            self.finish()

    def finish(self) -> None:
        """Mark the task as done and notify its readers."""
        self._first(self)
        with self._guard:
            self._done.set()
            then, self._then = self._then, []
        for each in then:
            each()


class RenderPool:
    """A few threads and a queue of tasks; tasks with a waiting reader go first.

    After a fork the child has no threads and starts its own.
    """

    def __init__(self, name: str, max_threads: int) -> None:
        """Start at most `max_threads` threads, when they are needed."""
        self._name = name
        self._max_threads = max_threads
        self._closed = False
        self.after_fork()
        reset_after_fork(self)

    def submit(self, render: RenderTask) -> None:
        """Queue a task.  It is cancelled after `close`, and fails if no thread can be started."""
        with self._guard:
            if not self._closed and self._ensure_thread():
                self._queue.append(render)
                self._changed.notify()
                return
            if not self._closed:
                render.error = OSError(errno.EAGAIN, "cannot start a new thread")
        render.finish()

    def close(self) -> None:
        """Cancel queued tasks and wait for running ones.

        A thread that does not end is abandoned after a while.  An exception out of a signal handler
        may have left one of Python's own locks held, or come before the thread was marked as
        started.
        """
        with self._guard:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for render in left:
            render.finish()
        end = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            with suppress(RuntimeError):  # raised for a thread that was not started
                thread.join(max(0.0, end - time.monotonic()))

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        # Entering a condition is not safe from signals; entering a lock is.
        self._guard = threading.Lock()
        self._changed = threading.Condition(self._guard)
        self._queue: deque[RenderTask] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0

    def _ensure_thread(self) -> bool:
        """Return whether there is a thread, after starting one more if all are busy."""
        if self._idle <= len(self._queue) and len(self._threads) < self._max_threads:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            try:
                thread.start()
            except RuntimeError:  # the existing threads have to suffice
                self._threads.remove(thread)
        return bool(self._threads)

    def _serve(self) -> None:
        while (render := self._next()) is not None:
            render.run()
            del render  # releases its bytes

    def _next(self) -> RenderTask | None:
        with self._guard:
            self._idle += 1
            try:
                while not self._closed and not self._queue:
                    self._changed.wait()
            finally:
                self._idle -= 1
            if not self._queue:
                return None
            task = next((one for one in self._queue if one.has_waiting_reader), self._queue[0])
            self._queue.remove(task)
            return task


RenderSlot = Callable[[Checkpoint], Bytes]
"""Renders a slot, and calls the check now and then."""


# Each digest has its own directory: removing a video removes all its views by one name, and a twin
# with the same digest shares them.
def _digest_of(key: str) -> str:
    return key.partition("/")[0]


class MemoryCache:
    """The most recently used bytes, at most `budget` of them or the newest entry.  Thread-safe."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._held = 0
        self._entries: OrderedDict[str, Bytes] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, key: str) -> Bytes | None:
        with self._guard:
            data = self._entries.get(key)
            if data is not None:
                self._entries.move_to_end(key)
            return data

    def put(self, key: str, data: Bytes) -> None:
        gone: list[Bytes] = []  # released outside the lock, because freeing memory takes time
        with self._guard:
            self._held -= len(self._entries.pop(key, b""))
            self._entries[key] = data
            self._held += len(data)
            while self._held > self._budget and len(self._entries) > 1:
                gone.append(self._entries.popitem(last=False)[1])
                self._held -= len(gone[-1])

    def all_keys(self) -> list[str]:
        with self._guard:
            return list(self._entries)

    def drop(self, key: str) -> None:
        with self._guard:
            self._held -= len(self._entries.pop(key, b""))


class RenderCache:
    """Returns the bytes of a key and renders them at most once, for any number of threads.

    Keys are file names, see `file_of`.
    """

    def __init__(self, memory: MemoryCache, files: FileCache | None) -> None:
        self._memory = memory
        self._files = files
        self._renders: dict[str, RenderTask] = {}
        self._guard = threading.Lock()

    def get(
        self,
        key: str,
        make: RenderSlot,
        pool: RenderPool,
        *,
        keep: bool,
        cancel_check: CancelCheck | None = None,
    ) -> Bytes:
        """Return what `make` returns, or has returned before; one thread of `pool` calls it.

        Args:
            keep: the result is worth a file.
            cancel_check: called now and then while this waits; its exception ends the wait.

        If `make` fails, all waiting readers get the error.  If the last reader leaves, `make` is
        stopped.
        """
        while True:
            found = self._wanted(key, make, pool, keep)
            if not isinstance(found, RenderTask):
                return found
            try:
                found.wait(cancel_check)
            finally:
                found.remove_reader()
            if found.error is not None:
                raise found.error
            if found.data is not None:
                return found.data

    def prefetch(
        self, key: str, make: RenderSlot, pool: RenderPool, then: Callable[[], None], *, keep: bool
    ) -> RenderTask | None:
        """Start rendering without waiting; the caller has to call `remove_reader` of the task.

        `then` is called by another thread when the task is done or cancelled.  None means that the
        bytes are already there, and `then` is not called.
        """
        found = self._wanted(key, make, pool, keep, then)
        return found if isinstance(found, RenderTask) else None

    def has(self, key: str) -> bool:
        """Return whether the bytes are cached; they may be evicted at any moment."""
        if self._memory.get(key) is not None:
            return True
        return self._files is not None and self._files.has(key)

    def digests(self) -> set[str]:
        """Return the digests of the videos that have views in memory."""
        return {_digest_of(key) for key in self._memory.all_keys()} - {""}

    def forget(self, digests: Collection[str]) -> None:
        """Drop all memory entries of videos that were removed."""
        for key in self._memory.all_keys():
            if _digest_of(key) in digests:
                self._memory.drop(key)

    def _wanted(
        self,
        key: str,
        make: RenderSlot,
        pool: RenderPool,
        keep: bool,
        then: Callable[[], None] | None = None,
    ) -> Bytes | RenderTask:
        """Return the bytes, or a task that renders them with one more reader."""
        with self._guard:
            data = self._memory.get(key)
            if data is not None:
                return data
            render = self._renders.get(key)
            if render is not None and render.add_reader(then):
                return render
            render = RenderTask(
                lambda check: self._made(key, make, check, keep), partial(self._forget, key)
            )
            render.add_reader(then)
            self._renders[key] = render
        pool.submit(render)
        return render

    def _made(self, key: str, make: RenderSlot, check: Checkpoint, keep: bool) -> Bytes:
        files = self._files if keep else None
        data: Bytes | None = files.get(key) if files is not None else None
        if data is None:
            data = make(check)
            if files is not None:
                files.put(key, data)
        self._memory.put(key, data)
        return data

    def _forget(self, key: str, render: RenderTask) -> None:
        with self._guard:
            if self._renders.get(key) is render:
                del self._renders[key]


def cached_slot_name(rendered: RenderedView, slot: int) -> str:
    """Return the file name of a slot in the cache, see `vfsd.storage.file_cache`."""
    if isinstance(rendered, TranscodedView):
        return cache_file_name(rendered.digest, rendered.key_of_slot(slot))
    return cache_file_name(rendered.digest, f"{rendered.key}.{slot}")


@dataclass(frozen=True, slots=True)
class RenderHistory:
    """Encode times and cached files of earlier renders on this host."""

    encode_pixel: Mapping[str, float] = field(default_factory=dict)
    """CPU seconds per pixel of a view, by codec.  Codecs without a measurement are missing."""
    is_cached: Callable[[str], bool] | None = None
    """Tests whether the cache has a file of that name, see `cached_slot_name`; None if unknown."""

    @classmethod
    def of_store(cls, parts: StoreContext) -> RenderHistory:
        """Read the history from the catalog and from the files of the cache."""
        return cls(parts.catalog.encode_costs(host_name()), FileCache.of_store(parts).has)

    def count_cached(self, rendered: RenderedView) -> int | None:
        """Return the number of slots of a view in the cache; None if unknown or if none can be
        cached.
        """
        if self.is_cached is None or not rendered.storable:
            return None
        return sum(self.is_cached(cached_slot_name(rendered, slot)) for slot in rendered.storable)


def store_encode_times(parts: StoreContext, times: EncodeTimes) -> None:
    """Move the sums of `times` into the catalog; sums that are too small stay for the next call.

    If the catalog cannot be written, it keeps the older measurement.
    """
    if parts.read_only:
        return
    measured = times.take(_MIN_PIXELS)
    if not measured:
        return
    try:
        with parts.catalog.writing() as change:
            for codec, seconds in measured.items():
                change.costs.put_encoding(host_name(), codec, seconds, time.time_ns())
    except VfsdError as error:
        _log.debug("the encode time was not stored: %s", error)


class CachedSlotCounts:
    """Counts, for each view, the cached slots among those that are worth a file.  Thread-safe.

    The counts are remembered, because testing takes a system call for each slot.  A slot that was
    evicted in the meantime is noticed when it is read.
    """

    def __init__(self, is_there: Callable[[RenderedView, int], bool]) -> None:
        """`is_there` tests whether a slot is in the cache."""
        self._is_there = is_there
        # length of the cached prefix
        self._found: WeakKeyDictionary[RenderedView, int] = WeakKeyDictionary()

    def is_complete(self, rendered: RenderedView) -> bool:
        """Return whether all slots worth a file were cached at the last `refresh`; False without
        any.
        """
        return 0 < len(rendered.storable) == self._found.get(rendered)

    def refresh(self, rendered: RenderedView) -> None:
        """Extend the count from the first slot that was missing."""
        found = self._found.get(rendered, 0)
        if found == len(rendered.storable):
            return
        for slot in sorted(rendered.storable)[found:]:
            if not self._is_there(rendered, slot):
                break
            found += 1
        self._found[rendered] = found

    def forget(self, rendered: RenderedView) -> None:
        """Reset the count, because a slot has to be rendered."""
        self._found.pop(rendered, None)


class _MaterialisedFile(NamedTuple):
    fd: int
    size: int  #: bytes
    digest: str  #: of the video that the view shows


class MaterialisedViews:
    """The most recently read views as whole files, at most `budget` bytes together.
    Thread-safe.
    """

    def __init__(
        self, directory: Path, budget: int, slot: Callable[[RenderedView, int], Bytes]
    ) -> None:
        """`directory` selects the disk; `slot` returns the bytes of a slot without its zero
        padding.
        """
        self._directory = directory
        self._budget = budget
        self._slot = slot
        self._guard = threading.Lock()
        self._files: OrderedDict[str, _MaterialisedFile] = OrderedDict()
        self._coming: set[str] = set()
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vfsd-wholes")

    def open(self, key: str) -> int | None:
        """Return a new descriptor of a file with exactly the bytes of the view, or None.

        The caller closes the descriptor.
        """
        with self._guard:
            found = self._files.get(key)
            if found is None:
                return None
            self._files.move_to_end(key)
            return os.dup(found.fd)

    def request(self, rendered: RenderedView) -> None:
        """Schedule a file for a view that was read completely, unless it is too large.

        Raw pictures and stills get none: no cache file holds them, so they would have to be decoded
        again.
        """
        key, size = rendered.key, rendered.slots.size
        if not isinstance(rendered, PlannedView) or rendered.method == "decoded":
            return
        if size > self._budget:
            return
        with self._guard:
            if self._closed or key in self._files or key in self._coming:
                return
            self._coming.add(key)
            self._thread.submit(self._make, rendered)

    def close(self) -> None:
        with self._guard:
            self._closed = True
        self._thread.shutdown(cancel_futures=True)
        with self._guard:
            for whole in self._files.values():
                os.close(whole.fd)
            self._files.clear()

    def digests(self) -> set[str]:
        """Return the digests of the videos that the files show."""
        with self._guard:
            return {whole.digest for whole in self._files.values()}

    def forget(self, digests: Collection[str]) -> None:
        """Drop the files of videos that were removed.  Duplicated descriptors stay valid."""
        with self._guard:
            gone = [key for key, whole in self._files.items() if whole.digest in digests]
            files = [self._files.pop(key) for key in gone]
        for whole in files:
            os.close(whole.fd)

    def _make(self, rendered: RenderedView) -> None:
        try:
            fd = os.open(self._directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                self._fill(fd, rendered)
            except BaseException:
                os.close(fd)
                raise
            self._keep(rendered.key, _MaterialisedFile(fd, rendered.slots.size, rendered.digest))
        except (OSError, VfsdError) as error:
            _log.debug("a view was not kept as a whole file: %s", error)
        finally:
            with self._guard:
                self._coming.discard(rendered.key)

    def _fill(self, fd: int, rendered: RenderedView) -> None:
        slots = rendered.slots
        with open(fd, "wb", buffering=_COPY_BYTES, closefd=False) as file:
            for number in range(len(slots)):
                if self._closed:
                    raise OSError(errno.EINTR, "the cache of whole views is closed")
                data = self._slot(rendered, number)
                file.write(data)
                file.write(bytes(slots[number].size - len(data)))

    def _keep(self, key: str, whole: _MaterialisedFile) -> None:
        gone = []
        with self._guard:
            self._files[key] = whole
            held = sum(each.size for each in self._files.values())
            while held > self._budget or len(self._files) > _MAX_OPEN:
                gone.append(self._files.popitem(last=False)[1])
                held -= gone[-1].size
        for old in gone:
            os.close(old.fd)
